-- Prolongs leases. What is being finished or taken over at this moment is left alone, without
-- waiting: two statements that wait for each other's rows would be a deadlock.
with held as materialized (
    select e.ctid as place, e.change_id, e.generation
    from unnest($1::bigint[], $2::integer[]) h(change_id, generation)
    cross join lateral (
        select e.ctid, e.change_id, e.generation
        from changefeed.event e
        where e.change_id = h.change_id and e.generation = h.generation and e.locked_by is not null
        offset 0
    ) e
),
free as materialized (
    select e.ctid as place
    from changefeed.event e
    where e.ctid = any (array(select h.place from held h))
    for update skip locked
),
renewed as (
    update changefeed.event e
    set due_at = (select changefeed.noted_time()) + $3 * interval '1 millisecond'
    where e.ctid = any (array(select f.place from free f)) and e.locked_by is not null
)
select h.change_id, h.generation::bigint from held h
