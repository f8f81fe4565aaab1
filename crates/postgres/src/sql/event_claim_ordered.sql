-- Takes the oldest unfinished event of each key, where it is due. Walks from key to key through
-- the index, so that neither a key with many events nor many keys that wait for a retry cost more
-- than a step each; $5 bounds the steps, and a random beginning ($6) is fair to all keys.
with recursive head as (
    (select e.order_key, e.change_id, e.due_at, 1 as step
     from changefeed.event e
     where e.trigger_id = ($1::integer[])[1] and e.due_at is not null
       and e.order_key >= $6 and e.order_key <= $7
     order by e.order_key, e.change_id
     limit 1)
    union all
    select e.order_key, e.change_id, e.due_at, h.step + 1
    from head h
    cross join lateral (
        select e.order_key, e.change_id, e.due_at
        from changefeed.event e
        where e.trigger_id = ($1::integer[])[1] and e.due_at is not null
          and e.order_key > h.order_key and e.order_key <= $7
        order by e.order_key, e.change_id
        limit 1
    ) e
    where h.step < $5
),
due as materialized (
    select e.ctid as place, e.change_id, e.locked_by, e.tries
    from (select h.change_id from head h where h.due_at <= (select clock_timestamp())
          limit ($2::integer[])[1]) h
    join changefeed.event e on e.change_id = h.change_id
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
        and t.paused_because is null and t.dropped_at is null
    where e.due_at <= (select clock_timestamp())
    for update of e skip locked
),
{take}
