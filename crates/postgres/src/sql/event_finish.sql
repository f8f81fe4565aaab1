-- Writes down attempts and what follows from them. Whoever has lost an event in the meantime
-- (its generation has moved on) leaves its attempt in the log, but decides nothing.
with finished as materialized (
    select * from unnest($1::bigint[], $2::integer[], $3::"char"[], $4::float8[], $5::integer[],
                         $6::text[], $7::smallint[], $8::text[], $9::text[], $10::text[],
                         $11::bigint[])
        f(change_id, generation, verdict, after_ms, attempt, outcome, status, request, response,
          error, duration_ms)
),
applied as (
    update changefeed.event e
    set state = case when f.verdict in ('d', 'e') then f.verdict else 'p' end,
        due_at = case when f.verdict in ('r', 'g')
                      then (select changefeed.noted_time()) + f.after_ms * interval '1 millisecond' end,
        cut_off = least(e.cut_off + (f.outcome = 'unknown')::integer, 32767),
        locked_by = null
    from finished f
    where e.change_id = f.change_id and e.generation = f.generation and e.locked_by is not null
    returning e.change_id, e.generation, e.trigger_id, f.verdict
),
paused as (
    update changefeed.event_trigger t
    set paused_because = 'the webhook answered 410 Gone', updated_at = clock_timestamp()
    where t.paused_because is null
      and t.trigger_id in (select a.trigger_id from applied a where a.verdict = 'g')
),
logged as (
    insert into changefeed.event_attempt
        (change_id, generation, trigger_id, attempt, outcome, status, request, response, error,
         duration_ms)
    select f.change_id, f.generation, a.trigger_id, f.attempt, f.outcome, f.status, f.request,
           f.response, f.error, f.duration_ms
    from finished f
    join applied a on a.change_id = f.change_id and a.generation = f.generation
),
late as materialized (
    select f.* from finished f
    where not exists (select from applied a
                      where a.change_id = f.change_id and a.generation = f.generation)
),
logged_late as (
    insert into changefeed.event_attempt
        as known (change_id, generation, trigger_id, attempt, outcome, late, status, request,
                  response, error, duration_ms)
    select f.change_id, f.generation, e.trigger_id, f.attempt, f.outcome, true, f.status,
           f.request, f.response, f.error, f.duration_ms
    from late f join changefeed.event e on e.change_id = f.change_id
    -- Written already, if this is said twice; but what was thought cut off is known now.
    on conflict (change_id, generation) do update
    set outcome = excluded.outcome, late = excluded.late, status = excluded.status,
        request = excluded.request, response = excluded.response, error = excluded.error,
        duration_ms = excluded.duration_ms
    where known.outcome = 'unknown' and excluded.outcome <> 'unknown'
)
select f.change_id, f.generation::bigint from late f
