-- Of the events of a key whose first one is due, the last is delivered for all: the others are marked, and it is due
-- now. Only what was never tried takes part, and nothing that a person has sent. Looks at a bounded number ($2) of
-- events. One instance at a time; whoever comes at the same moment leaves it to the first.
with turn as materialized (
    select changefeed.claim_room($1, 1, null) > 0 as ours
),
keys as materialized (
    select distinct h.order_key
    from (
        select e.order_key
        from changefeed.event e
        where e.trigger_id = $1 and e.due_at <= (select clock_timestamp())
          and e.generation = 0 and e.op <> 'M' and (select t.ours from turn t)
        order by e.due_at, e.change_id
        limit $2
    ) h
    where h.order_key is not null
),
waiting as materialized (
    select w.place, w.change_id, k.order_key
    from keys k
    cross join lateral (
        select e.ctid as place, e.change_id
        from changefeed.event e
        where e.trigger_id = $1 and e.order_key = k.order_key and e.due_at is not null
          and e.generation = 0 and e.op <> 'M'
        order by e.change_id
        for update skip locked
    ) w
),
last as materialized (
    select w.order_key, max(w.change_id) as change_id
    from waiting w
    group by w.order_key
    having count(*) > 1
),
collapsed as (
    update changefeed.event e
    set state = 'c', due_at = null,
        superseded_by = (select l.change_id from last l where l.order_key = e.order_key)
    where e.ctid = any (array(select w.place from waiting w join last l on l.order_key = w.order_key
                              where w.change_id < l.change_id))
    returning 1
),
brought as (
    update changefeed.event e
    set due_at = (select changefeed.noted_time())
    where e.ctid = any (array(select w.place from waiting w join last l on l.change_id = w.change_id))
)
select count(*) from collapsed
