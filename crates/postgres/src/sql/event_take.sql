taken as (
    update changefeed.event e
    set due_at = clock_timestamp() + $4 * interval '1 millisecond',
        locked_by = $3,
        generation = e.generation + 1,
        -- Counted now: whoever dies in the middle has made an attempt.
        tries = least(e.tries + 1, 32767),
        cut_off = least(e.cut_off + (e.locked_by is not null)::integer, 32767)
    -- By their places, which are locked: any join here is a scan of the whole log to a planner
    -- that knows too little.
    where e.ctid = any (array(select d.place from due d))
    returning e.*
),
-- Somebody held it and has not come back.
cut_off as (
    insert into changefeed.event_attempt
        (change_id, generation, trigger_id, attempt, outcome, error)
    select e.change_id, e.generation - 1, e.trigger_id, d.tries, 'unknown',
           format('%s stopped before the outcome was known', d.locked_by)
    from due d join taken e on e.change_id = d.change_id
    where d.locked_by is not null
    on conflict do nothing
)
select e.change_id, e.trigger_id, e.generation::bigint, e.tries::integer, e.cut_off::integer,
       e.op::text, e.old, e.new, e.session_variables, e.trace_context,
       to_char(e.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       t.name::text, t.schema_name, t.table_name, (select s.salt from changefeed.event_salt s)
from taken e
join changefeed.event_trigger t on t.trigger_id = e.trigger_id
order by e.change_id
