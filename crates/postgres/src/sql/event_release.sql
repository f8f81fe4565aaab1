-- Nothing was sent, so no attempt is counted.
with held as materialized (
    select e.ctid as place
    from unnest($1::bigint[], $2::integer[]) h(change_id, generation)
    join changefeed.event e on e.change_id = h.change_id and e.generation = h.generation
    where e.locked_by is not null
    order by e.change_id
    for update of e
)
update changefeed.event e
set due_at = (select changefeed.noted_time()), locked_by = null, tries = e.tries - 1
where e.ctid = any (array(select h.place from held h))
