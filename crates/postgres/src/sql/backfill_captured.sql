-- The next rows in order of the primary key become changes of this feed.
with state as materialized (
    select b.last_key from changefeed.backfill b where b.feed_id = $1
),
picked as materialized (
    select p.key, p.shard, p.ord, nextval('changefeed.change_id') as change_id
    from (
        select {key} as key, {shard} as shard, row_number() over (order by {order}) as ord
        from state cross join lateral (
            select * from {table} t where changefeed.same_row(t.*, $3) {resume} order by {order} limit $2
        ) t
        order by 3
    ) p
),
seen as materialized (select * from picked),
linked as (
    insert into changefeed.change_row (change_id, feed_id, key) select k.change_id, $1, k.key from picked k
),
{number}
