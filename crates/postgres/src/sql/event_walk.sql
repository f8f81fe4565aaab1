-- The oldest unfinished event of each key, from a key on, and whether it is due. A step through the
-- index for each key, so that one with many events costs no more than others.
with recursive head as (
    (select e.order_key, e.change_id, e.due_at, 1 as step
     from changefeed.event e
     where e.trigger_id = $1 and e.due_at is not null and e.order_key >= $2
     order by e.order_key, e.change_id
     limit 1)
    union all
    select e.order_key, e.change_id, e.due_at, h.step + 1
    from head h
    cross join lateral (
        select e.order_key, e.change_id, e.due_at
        from changefeed.event e
        where e.trigger_id = $1 and e.due_at is not null and e.order_key > h.order_key
        order by e.order_key, e.change_id
        limit 1
    ) e
    where h.step < $3
)
select h.order_key, h.change_id, h.due_at <= clock_timestamp() from head h order by h.order_key
