-- Nothing was sent, so no attempt is counted.
declare @held table (change_id bigint not null primary key, generation int not null);
insert into @held (change_id, generation)
select h.change_id, max(h.generation) from openjson(@P1) with (change_id bigint, generation int) h
group by h.change_id;
exec changefeed.note_time;
update changefeed.event
set due_at = sysutcdatetime(), locked_by = null, tries = tries - 1
-- By their keys: a search through all events would wait for writers.
from (select x.change_id as held_id from @held x) k --@sqlserver
join changefeed.event with (forceseek) on changefeed.event.change_id = k.held_id --@sqlserver
where locked_by is not null
  and exists (select 1 from @held h where h.change_id = changefeed.event.change_id
                and h.generation = changefeed.event.generation)
option (loop join, force order) --@sqlserver
