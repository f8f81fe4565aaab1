-- An event by hand. It belongs to no key, so it waits for none: its own number is its key.
declare @written table (change_id bigint not null);
begin transaction;
insert into changefeed.event (trigger_id, op, new)
output inserted.change_id into @written (change_id)
select t.trigger_id, 'M', {payload} from changefeed.event_trigger t
where t.trigger_id = {trigger_id} and t.dropped_at is null;
update e set order_key = e.change_id
from changefeed.event e join @written w on w.change_id = e.change_id;
insert into changefeed.change (feed_id, shard, change_id)
select t.feed_id, 0, w.change_id
from @written w join changefeed.event_trigger t on t.trigger_id = {trigger_id}
where t.feed_id is not null;
commit transaction;
select w.change_id, s.salt from @written w cross join changefeed.event_salt s;
