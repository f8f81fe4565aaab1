-- The next existing rows, in order of their key. They are read first, without any lock of ours: what
-- is changed meanwhile is noted, and what is deleted meanwhile will be found to be gone.
declare @last nvarchar(max), @operation smallint, @seen int, @base bigint;
{declare}
declare @picked table (place int identity primary key, {k_types}, [key] nvarchar(max) not null);
select @last = w.loaded_to, @operation = w.loading from changefeed.watch w where w.function_id = {function_id};
if @operation is null
begin
    select convert(bit, 0);
    return;
end;
{position}
insert into @picked ({k}, [key])
select top ({chunk}) {t_keys}, {key_array}
from {table} t
where {resume}
order by {t_keys}
option (recompile);
set @seen = @@rowcount;
begin transaction;
{lock}
-- Of several who load, one is first.
update changefeed.watch
set loaded_to = (select top (1) p.[key] from @picked p order by p.place desc),
    loading = case when @seen < {chunk} then null else @operation end
where function_id = {function_id} and loading = @operation
  and isnull(loaded_to, N'') = isnull(@last, N'');
if @@rowcount = 1
begin
    update changefeed.watched_table set last_version = last_version + @seen where table_id = {table_id};
    select @base = t.last_version - @seen from changefeed.watched_table t where t.table_id = {table_id};
    insert into changefeed.{leases} ({keys}, _changefeed_change_version, _changefeed_operation)
    select {p_k}, @base + p.place, @operation
    from @picked p
    where not exists (select 1 from changefeed.{leases} q where {same_key});
end;
commit transaction;
select convert(bit, case when exists (select 1 from changefeed.watch w
                                      where w.function_id = {function_id} and w.loading is not null)
                         then 1 else 0 end)
