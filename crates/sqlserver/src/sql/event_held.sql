-- What an owner holds, if its lease ends within so many seconds of now, before or after: a bound,
-- because all that is pending is in the index. What somebody is changing at this moment is passed by.
declare @owner nvarchar(400) = left(@P1, 400), @now datetime2(6) = sysutcdatetime();
select e.change_id, convert(bigint, e.generation)
from changefeed.event_trigger t
join changefeed.event e with (readcommittedlock, readpast) on e.trigger_id = t.trigger_id
where e.due_at > dateadd(second, -@P2, @now) and e.due_at <= dateadd(second, @P2, @now)
  and e.due_at is not null and e.locked_by = @owner
