-- Takes what is due, oldest first, without waiting for anybody. `(select clock_timestamp())` is
-- one moment for the whole statement, so that the index can be searched by it.
with due as materialized (
    select e.ctid as place, e.change_id, e.locked_by, e.tries
    from unnest($1::integer[], $2::integer[]) w(trigger_id, room)
    join changefeed.event_trigger t on t.trigger_id = w.trigger_id
        and t.paused_because is null and t.dropped_at is null
    cross join lateral (
        select e.ctid, e.change_id, e.locked_by, e.tries
        from changefeed.event e
        where e.trigger_id = w.trigger_id and e.due_at <= (select clock_timestamp())
        order by e.due_at, e.change_id
        limit w.room
        for update skip locked
    ) e
),
{take}
