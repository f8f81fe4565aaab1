-- The next rows in order of the primary key become changes of this feed.
with state as materialized (
    select b.last_key from changefeed.backfill b where b.feed_id = $1
),
seen as materialized (
    select {key} as key, {shard} as shard, {image} as image, row_number() over (order by {order}) as ord
    from state cross join lateral (
        select * from {table} t where changefeed.same_row(t.*, $3) {resume} order by {order} limit $2
    ) t
),
-- A row that has no image is not in this feed.
picked as materialized (
    select p.key, p.shard, p.ord, p.image, nextval('changefeed.change_id') as change_id
    from (select s.* from seen s where {here} order by s.ord) p
),
linked as (
    insert into changefeed.change_row (change_id, feed_id, op, key, new)
    select k.change_id, $1, 'B', k.key, k.image from picked k
),
{number}
