-- Takes events that a walk has found to be the oldest of their keys ($5), where they are still due.
with due as materialized (
    select e.ctid as place, e.change_id, e.locked_by, e.tries, e.due_at
    from unnest($5::bigint[]) h(change_id)
    join changefeed.event e on e.change_id = h.change_id
    join changefeed.event_trigger t on t.trigger_id = e.trigger_id
        and t.paused_because is null and t.dropped_at is null
    where e.trigger_id = ($1::integer[])[1] and e.due_at <= (select clock_timestamp())
    limit ($2::integer[])[1]
    for update of e skip locked
),
{take}
