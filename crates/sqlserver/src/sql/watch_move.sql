-- Moves committed changes to the backlogs of all functions that watch the table, some at a time, until
-- there are no more: what comes last decides the order and the net change of a row.
declare @moved int = {chunk}, @keys int, @since bigint, @until bigint, @floor bigint;
declare @known varchar(50), @noted varchar(50);
declare @scanned table ({k_types}, place bigint not null, operation smallint not null,
                        [columns] varchar(max) null);
declare @net table ({k_types}, first smallint not null, last smallint not null,
                    newest bigint not null, [columns] varchar(max) null, number int not null
                    , primary key ({k}) --@sqlserver
                    );
while @moved >= {chunk}
begin
    delete from @scanned;
    delete from @net;
    {read_changes}
    begin transaction;
    -- The lock, and who is first of those who have read the same.
    update changefeed.watched_table
    set last_version = last_version + 1{claim}
    where table_id = {table_id} and generation = {generation}{unclaimed};
    if @@rowcount = 0
    begin
        commit transaction;
        if not exists (select 1 from changefeed.watched_table t
                       where t.table_id = {table_id} and t.generation = {generation})
            set @stale = 1;
        break;
    end;
    {take_changes}
    set @moved = (select count(*) from @scanned);
    -- Changes of one key are in the order of their places: whoever changes a row holds its lock.
    insert into @net ({k}, first, last, newest, [columns], number)
    select {s_k}, min(s.place * 4 + s.operation) % 4, max(s.place * 4 + s.operation) % 4, max(s.place),
           case when count(s.[columns]) = count(*) then string_agg(s.[columns], '') end,
           row_number() over (order by max(s.place))
    from @scanned s
    group by {s_k};
    set @keys = @@rowcount;
    update changefeed.watched_table set last_version = last_version + @keys where table_id = {table_id};
    select @base = t.last_version - @keys from changefeed.watched_table t where t.table_id = {table_id};
    if @keys > 0
    begin
{functions}
    end;
    commit transaction;
    if @missed is not null break;
end;
