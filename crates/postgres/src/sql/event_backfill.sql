-- The next rows in order of the primary key become events.
with state as materialized (
    select b.last_key from changefeed.event_backfill b where b.trigger_id = $1
),
picked as materialized (
    select p.*, nextval('changefeed.change_id') as change_id
    from (
        select {key} as key, {image} as image, {order_key} as order_key, {shard} as shard,
               ({condition}
               ) is true as wanted, row_number() over (order by {order}) as place
        from state cross join lateral (
            select * from {table} t where changefeed.same_row(t.*, $3) {resume} order by {order} limit $2
        ) t
        -- What a condition knows a row by.
        left join (select {old_columns} from {table} t where changefeed.same_row(t.*, $3)) old on false
        cross join lateral (select {new_columns}) new
        order by 6
    ) p
),
sent as materialized (select p.* from picked p where p.wanted),
logged as (
    insert into changefeed.event (change_id, trigger_id, feed_id, op, new, due_at, order_key)
    select p.change_id, $1, {feed}, 'I', p.image,
           changefeed.first_due((select t.wait_ms from changefeed.event_trigger t where t.trigger_id = $1)),
           p.order_key
    from sent p
),
{publish}
moved as (
    update changefeed.event_backfill b
    set last_key = (select p.key from picked p order by p.place desc limit 1),
        done = b.done + (select count(*) from picked)
    where b.trigger_id = $1 and exists (select from picked)
)
select count(*), count(*) filter (where p.wanted) from picked p
