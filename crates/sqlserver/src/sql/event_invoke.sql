-- An event by hand. It belongs to no key, so it waits for none: its own number is its key. Returns
-- its number, its random bits, and the feed that it also enters.
declare @written table (change_id bigint not null, bits bigint not null);
insert into changefeed.event (trigger_id, op, new, shard)
output inserted.change_id, inserted.bits into @written (change_id, bits)
select t.trigger_id, 'M', @P2, 0 from changefeed.event_trigger t
where t.trigger_id = @P1 and t.dropped_at is null;
update e set order_key = e.change_id
from @written w join changefeed.event e with (forceseek) on e.change_id = w.change_id
option (loop join, force order) --@sqlserver
;
select w.change_id, w.bits, t.feed_id
from @written w
join changefeed.event_trigger t on t.trigger_id = @P1
