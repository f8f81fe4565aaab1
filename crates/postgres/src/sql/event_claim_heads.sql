-- Takes events that a walk has found to be the oldest of their keys ($5), where they are still due.
with wanted as materialized (
    select changefeed.claim_room($1, $2, $6) as room
),
due as materialized (
    select e.ctid as place, e.change_id, e.locked_by, e.tries, e.due_at
    from unnest($5::bigint[]) h(change_id)
    join changefeed.event e on e.change_id = h.change_id
    where e.trigger_id = $1 and e.due_at <= (select clock_timestamp())
    limit (select w.room from wanted w)
    for update of e skip locked
),
{take}
