taken as (
    update changefeed.event e
    set due_at = (select changefeed.noted_time()) + $4 * interval '1 millisecond',
        locked_by = $3,
        generation = e.generation + 1,
        -- Counted now: whoever dies in the middle has made an attempt.
        tries = least(e.tries + 1, 32767),
        cut_off = least(e.cut_off + (e.locked_by is not null)::integer, 32767)
    -- By their places: any join here is a scan of the whole log to a planner that knows too little.
    -- Whoever was quicker has moved them, and then they are not due any more.
    where e.ctid = any (array(select d.place from due d))
      and e.due_at <= (select clock_timestamp())
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
),
-- Its row is locked since claim_room().
paced as (
    update changefeed.event_trigger t
    set paced_at = changefeed.paced(t.pace_us, t.burst, t.paced_at, n.taken)
    from (select e.trigger_id, count(*) as taken from taken e group by e.trigger_id) n
    where t.trigger_id = n.trigger_id and t.pace_us is not null
)
-- Only numbers: what a client that has stopped reading has not received keeps its transaction
-- open, so it must fit into any buffer. The rows are read afterwards, without a lock.
select e.change_id, e.generation::bigint, (extract(epoch from d.due_at) * 1000000)::bigint,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint, e.trigger_id
from taken e
join due d on d.change_id = e.change_id
