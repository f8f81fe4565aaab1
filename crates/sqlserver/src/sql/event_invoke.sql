-- An event by hand. It belongs to no key, so it waits for none: its own number is its key. Returns
-- its number, its random bits, and the feed that it also enters. A request whose key (@P3) was there
-- before makes no event: its number is that of the first, and it enters no feed. Two at the same time
-- wait for each other here.
declare @written table (change_id bigint not null, bits bigint not null);
declare @key uniqueidentifier = convert(uniqueidentifier, @P3), @first bigint, @bits bigint;
delete from changefeed.event_request where created_at < dateadd(day, -1, sysutcdatetime()) and request_key <> @key;
select @first = r.change_id, @bits = r.bits
from changefeed.event_request r with (updlock, holdlock) where r.request_key = @key;
insert into changefeed.event (trigger_id, op, new, feed_id, shard, due_at)
output inserted.change_id, inserted.bits into @written (change_id, bits)
select t.trigger_id, 'M', @P2, t.feed_id, 0, d.first_due
from changefeed.event_trigger t join changefeed.event_due d on d.trigger_id = t.trigger_id
where t.trigger_id = @P1 and t.dropped_at is null and @first is null;
insert into changefeed.event_request (request_key, change_id, bits)
select @key, w.change_id, w.bits from @written w;
update e set order_key = e.change_id
from @written w join changefeed.event e with (forceseek) on e.change_id = w.change_id
option (loop join, force order) --@sqlserver
;
select w.change_id, w.bits, t.feed_id
from @written w
join changefeed.event_trigger t on t.trigger_id = @P1
union all
select @first, @bits, convert(smallint, null)
where @first is not null
