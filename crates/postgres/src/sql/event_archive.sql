-- Archives a part of what was not delivered of triggers that were dropped. An attempt that is under way
-- will find itself late. The rows are locked in the order in which everybody locks them.
with batch as materialized (
    select e.change_id
    from changefeed.event_trigger t
    cross join lateral (
        select e.change_id from changefeed.event e
        where e.trigger_id = t.trigger_id and e.due_at is not null
        order by e.due_at, e.change_id
        limit $1
    ) e
    where t.dropped_at is not null
    limit $1
),
waiting as materialized (
    select e.ctid as place
    from changefeed.event e
    where e.change_id = any (array(select b.change_id from batch b)) and e.due_at is not null
    order by e.change_id
    for update
)
update changefeed.event e
set state = 'a', due_at = null, locked_by = null, generation = e.generation + 1
where e.ctid = any (array(select w.place from waiting w))
