-- Writes down attempts and what follows from them. Whoever has lost an event in the meantime (its
-- generation has moved on) leaves its attempt in the log, but decides nothing.
declare @now datetime2(6) = sysutcdatetime();
declare @finished table (
    change_id bigint not null, generation int not null, verdict char(1) not null,
    seconds int not null, milliseconds int not null, attempt int not null,
    outcome varchar(10) not null, status smallint null, request nvarchar(max) null,
    response nvarchar(max) null, error nvarchar(max) null, duration_ms bigint not null,
    primary key (change_id, generation));
declare @applied table (change_id bigint not null primary key, generation int not null,
                        trigger_id int not null);
insert into @finished (change_id, generation, verdict, seconds, milliseconds, attempt, outcome,
                       status, request, response, error, duration_ms)
select f.change_id, f.generation, f.verdict, f.seconds, f.milliseconds, f.attempt, f.outcome, f.status,
       f.request, f.response, f.error, --@sqlserver
       --@babelfish changefeed.json_plain(f.request), changefeed.json_plain(f.response), changefeed.json_plain(f.error),
       f.duration_ms
from openjson(@P1) with (
    change_id bigint, generation int, verdict char(1), seconds int, milliseconds int, attempt int,
    outcome varchar(10), status smallint, request nvarchar(max), response nvarchar(max),
    error nvarchar(max), duration_ms bigint) f;
exec changefeed.note_time;
begin transaction;
update changefeed.event
set state = (select case when f.verdict in ('d', 'e') then f.verdict else 'p' end
             from @finished f where f.change_id = changefeed.event.change_id
               and f.generation = changefeed.event.generation),
    due_at = (select case when f.verdict in ('r', 'g')
                          then dateadd(millisecond, f.milliseconds, dateadd(second, f.seconds, @now)) end
              from @finished f where f.change_id = changefeed.event.change_id
                and f.generation = changefeed.event.generation),
    cut_off = (select case when f.outcome = 'unknown' and changefeed.event.cut_off < 32767
                           then changefeed.event.cut_off + 1 else changefeed.event.cut_off end
               from @finished f where f.change_id = changefeed.event.change_id
                 and f.generation = changefeed.event.generation),
    locked_by = null
output inserted.change_id, inserted.generation, inserted.trigger_id
into @applied (change_id, generation, trigger_id)
-- By their keys: a search through all events would wait for writers.
from (select distinct x.change_id as finished_id from @finished x) h --@sqlserver
join changefeed.event with (forceseek) on changefeed.event.change_id = h.finished_id --@sqlserver
where locked_by is not null
  and exists (select 1 from @finished f where f.change_id = changefeed.event.change_id
                and f.generation = changefeed.event.generation)
option (loop join, force order) --@sqlserver
;
insert into changefeed.event_attempt
    (change_id, generation, trigger_id, attempt, outcome, status, request, response, error, duration_ms)
select f.change_id, f.generation, a.trigger_id, f.attempt, f.outcome, f.status, f.request, f.response,
       f.error, f.duration_ms
from @finished f join @applied a on a.change_id = f.change_id and a.generation = f.generation;
-- Written already, if this is said twice; but what was thought cut off is known now.
update k
set outcome = f.outcome, late = 1, status = f.status, request = f.request, response = f.response,
    error = f.error, duration_ms = f.duration_ms
from @finished f
join changefeed.event_attempt k with (forceseek) on k.change_id = f.change_id and k.generation = f.generation
where k.outcome = 'unknown' and f.outcome <> 'unknown'
  and not exists (select 1 from @applied a where a.change_id = f.change_id and a.generation = f.generation)
option (loop join, force order) --@sqlserver
;
insert into changefeed.event_attempt
    (change_id, generation, trigger_id, attempt, outcome, late, status, request, response, error,
     duration_ms)
select f.change_id, f.generation, e.trigger_id, f.attempt, f.outcome, 1, f.status, f.request, f.response,
       f.error, f.duration_ms
from @finished f join changefeed.event e with (forceseek) on e.change_id = f.change_id
where not exists (select 1 from changefeed.event_attempt k
                  where k.change_id = f.change_id and k.generation = f.generation)
option (loop join, force order) --@sqlserver
;
-- Last, because a claim has the trigger's row before any event.
if exists (select 1 from @finished f where f.verdict = 'g')
update changefeed.event_trigger
set paused_because = N'the webhook answered 410 Gone', updated_at = @now
where paused_because is null
  and trigger_id in (select a.trigger_id from @applied a
                     join @finished f on f.change_id = a.change_id and f.generation = a.generation
                     where f.verdict = 'g');
commit transaction;
select f.change_id, convert(bigint, f.generation) from @finished f
where not exists (select 1 from @applied a where a.change_id = f.change_id and a.generation = f.generation)
