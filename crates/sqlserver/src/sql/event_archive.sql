-- Archives a part of what was not delivered of triggers that were dropped. An attempt that is under way
-- will find itself late.
update top (@P1) e
set state = 'a', due_at = null, locked_by = null, generation = e.generation + 1
from changefeed.event_trigger t with (readcommittedlock, readpast)
join changefeed.event e with (forceseek) on e.trigger_id = t.trigger_id
where t.dropped_at is not null and e.due_at is not null
option (loop join, force order) --@sqlserver
