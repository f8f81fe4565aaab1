-- Takes what is due, oldest first. `(select clock_timestamp())` is one moment, so that the index can
-- be searched by it. A look begins at a floor ($5, microseconds since 1970) where there is one: see
-- floors.rs.
with ready as materialized (
    select w.*
    from (
        select w.trigger_id, w.room, w.overall,
               coalesce(to_timestamp(0) + w.floor * interval '1 microsecond', '-infinity') as floor
        from unnest($1::integer[], $2::integer[], $5::bigint[], $6::integer[])
            w(trigger_id, room, floor, overall)
    ) w
    where exists (select from changefeed.event e
                  where e.trigger_id = w.trigger_id and e.due_at >= w.floor
                    and e.due_at <= (select clock_timestamp()))
),
wanted as materialized (
    select r.trigger_id, r.floor,
           changefeed.claim_room(r.trigger_id, r.room, r.overall) as room
    from ready r
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
    limit $7
),
{take}
union all
-- Where a look from the very beginning has found nothing, the next need not begin there.
select null, null, null, (extract(epoch from clock_timestamp()) * 1000000)::bigint, w.trigger_id
from unnest($1::integer[], $5::bigint[]) w(trigger_id, floor)
where w.floor is null and not exists (select from ready r where r.trigger_id = w.trigger_id)
