-- Makes a batch of events pending again that are not waiting anyway. Returns how many, and the
-- oldest that was looked at.
declare @picked table (change_id bigint not null primary key, generation int not null);
declare @done table (change_id bigint not null);
insert into @picked (change_id, generation)
select top ({batch}) e.change_id, e.generation
from changefeed.event e with (readcommittedlock, readpast)
join changefeed.event_trigger t on t.trigger_id = e.trigger_id and t.dropped_at is null
where e.state <> 'p' and {matching}
order by e.change_id desc;
exec changefeed.note_time;
update changefeed.event
set state = 'p', due_at = sysutcdatetime(), tries = 0, cut_off = 0, generation = generation + 1,
    locked_by = null, order_key = isnull(order_key, change_id)
output inserted.change_id into @done (change_id)
-- By their keys: a search through all events would wait for writers.
from (select x.change_id as picked_id from @picked x) h --@sqlserver
join changefeed.event with (forceseek) on changefeed.event.change_id = h.picked_id --@sqlserver
where state <> 'p'
  and exists (select 1 from @picked p where p.change_id = changefeed.event.change_id
                and p.generation = changefeed.event.generation)
option (loop join, force order) --@sqlserver
;
select (select count_big(*) from @done), min(p.change_id) from @picked p
