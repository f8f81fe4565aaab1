-- Takes what is due and the oldest unfinished event of its key. Looks at a bounded number ($5) of
-- events, oldest first.
with due as materialized (
    select e.ctid as place, e.change_id, e.locked_by, e.tries, e.due_at
    from (
        select e.change_id, e.order_key
        from changefeed.event e
        where e.trigger_id = ($1::integer[])[1] and e.due_at <= (select clock_timestamp())
        order by e.due_at, e.change_id
        limit $5
    ) h
    join lateral (
        -- A step through the index, whatever waits behind the first.
        select o.change_id
        from changefeed.event o
        where o.trigger_id = ($1::integer[])[1] and o.order_key = h.order_key
          and o.due_at is not null
        order by o.change_id
        limit 1
    ) first on first.change_id = h.change_id
    join changefeed.event e on e.change_id = h.change_id
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
        and t.paused_because is null and t.dropped_at is null
    where e.due_at <= (select clock_timestamp())
    limit ($2::integer[])[1]
    for update of e skip locked
),
{take}
