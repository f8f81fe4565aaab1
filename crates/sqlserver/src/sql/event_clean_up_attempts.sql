-- Removes a batch of old attempts of events that are finished. Those of dead letters say what went wrong, and stay.
declare @trigger_id int = @P1, @limit int = @P4, @removed bigint;
declare @before datetime2(6) = dateadd(millisecond, -@P3, dateadd(second, -@P2, sysutcdatetime()));
declare @doomed table (change_id bigint not null, generation int not null, primary key (change_id, generation));
insert into @doomed (change_id, generation)
select top (@limit) a.change_id, a.generation
from changefeed.event_attempt a with (readcommittedlock, readpast)
join changefeed.event e with (readuncommitted) on e.change_id = a.change_id
where (@trigger_id < 0 or a.trigger_id = @trigger_id) and a.created_at < @before and e.state not in ('p', 'e')
order by a.change_id, a.generation;
delete a from @doomed d
join changefeed.event_attempt a with (forceseek) on a.change_id = d.change_id and a.generation = d.generation
option (loop join, force order) --@sqlserver
;
set @removed = @@rowcount;
select @removed
