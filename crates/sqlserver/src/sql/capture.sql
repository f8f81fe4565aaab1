create trigger {schema}.{trigger} on {table} after insert, update, delete as
begin
    -- The application's own count of rows is what its statement did, not what we do here.
    set nocount on;
    -- A writer that has limited its statement to some rows has not limited what we note of it.
    set rowcount 0;
    -- What filtered indexes need, whatever the writer's session is set to. When this trigger is
    -- over, the session has its own settings again.
    set ansi_warnings on;
    set ansi_padding on;
    set concat_null_yields_null on;
    set numeric_roundabort off;
    if not exists (select 1 from inserted) and not exists (select 1 from deleted) return;
    declare @published table (shard smallint not null, change_id bigint not null primary key);
    -- The ids come from a sequence, not from an identity: @@identity belongs to the application.
    insert into changefeed.change_row (feed_id, shard, op, [key], [old], [new])
    output inserted.shard, inserted.change_id into @published (shard, change_id)
    select {feed}, w.shard, w.op, w.[key], w.[old], w.[new]
    from (
        -- A row that moved to another key or shard is deleted at the place it left, and inserted at the other;
        -- and so is one that leaves the feed or enters it.
        select 0 as place, {old_shard} as shard, 'D' as op, {old_key} as [key],
               {old_image} as [old], convert(nvarchar(max), null) as [new]
        from deleted d
        where not exists (select 1 from inserted i
                          where {same_key} and {new_shard} = {old_shard}{and_new_here}){and_old_here}
        union all
        select 1, {new_shard}, case when d.{key_column} is null then 'I' else 'U' end, {new_key},
               case when d.{key_column} is not null then {old_image} end, {new_image}
        from inserted i
        left join deleted d on {same_key} and {new_shard} = {old_shard}{and_old_here}
        where 1 = 1{and_new_here}{and_differs}
    ) w
    order by w.place;
    insert into changefeed.change (feed_id, shard, change_id)
    select {feed}, p.shard, p.change_id from @published p;
end
