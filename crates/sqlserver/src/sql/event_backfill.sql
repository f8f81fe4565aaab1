-- The next rows in order of the primary key become events. Returns how many were looked at, how
-- many became events, done, total, and whether it is finished.
declare @trigger_id int = @P1, @limit int = @P2;
declare @last nvarchar(max), @done bigint, @total bigint, @finished datetime2(3), @seen int, @added int = 0;
{declare}
declare @picked table (place int identity primary key, [key] nvarchar(max) not null,
                       wanted bit not null, row nvarchar(max) not null, order_key bigint null,
                       shard smallint null);
declare @published table (change_id bigint not null primary key, shard smallint null);
begin transaction;
-- One backfill of a trigger at a time. Readers may look at the row meanwhile.
--@babelfish update changefeed.event_backfill set done = done where trigger_id = @trigger_id;
select @last = b.last_key, @done = b.done, @total = b.total, @finished = b.finished_at
from changefeed.event_backfill b with (updlock, rowlock) where b.trigger_id = @trigger_id;
if @finished is not null
begin
    commit transaction;
    select 0, 0, @done, @total, convert(bit, 1);
    return;
end;
{position}
insert into @picked ([key], wanted, row, order_key, shard)
select top (@limit) {key}, case when {wanted} then 1 else 0 end, {row}, {order_key}, {shard}
from {table} t
where {resume}
order by {order}
option (recompile);
set @seen = @@rowcount;
insert into changefeed.event (trigger_id, op, new, order_key, feed_id, shard, due_at)
output inserted.change_id, inserted.shard into @published (change_id, shard)
select @trigger_id, 'I', p.row, p.order_key, {feed}, p.shard, t.first_due
from @picked p cross join changefeed.event_due t
where t.trigger_id = @trigger_id and p.wanted = 1
order by p.place;
set @added = @@rowcount;
{publish}
select top (1) @last = p.[key] from @picked p order by p.place desc;
update changefeed.event_backfill
set done = done + @seen, last_key = @last,
    finished_at = case when @seen < @limit then sysutcdatetime() end
where trigger_id = @trigger_id;
commit transaction;
select @seen, @added, @done + @seen, @total,
       convert(bit, case when @seen < @limit then 1 else 0 end)
