-- Takes what is due, oldest first. Of several instances that look at the same moment one gets the
-- lock of a trigger, until its statement is over, and the others leave that trigger alone: cheaper
-- than a lock on every row. Nothing rests on it, because only what is still due is taken.
-- `(select clock_timestamp())` is one moment, so that the index can be searched by it. A look begins
-- at a floor ($5, microseconds since 1970) where there is one: see floors.rs.
with wanted as materialized (
    select t.trigger_id, w.room,
           coalesce(to_timestamp(0) + w.floor * interval '1 microsecond', '-infinity') as floor
    from unnest($1::integer[], $2::integer[], $5::bigint[]) w(trigger_id, room, floor)
    join changefeed.event_trigger t on t.trigger_id = w.trigger_id
        and t.paused_because is null and t.dropped_at is null
    where pg_try_advisory_xact_lock(1667655030, t.trigger_id)
),
due as materialized (
    select e.ctid as place, e.change_id, e.locked_by, e.tries, e.due_at
    from wanted w
    cross join lateral (
        select e.ctid, e.change_id, e.locked_by, e.tries, e.due_at
        from changefeed.event e
        where e.trigger_id = w.trigger_id and e.due_at >= w.floor
          and e.due_at <= (select clock_timestamp())
        order by e.due_at, e.change_id
        limit w.room
    ) e
),
{take}
