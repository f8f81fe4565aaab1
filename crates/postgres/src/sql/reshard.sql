-- Makes the shards $4 to $5 of the next generation, like the first of those before ($2 to $3), which are closed. Consumers
-- of those are registered at the beginning: what they have not read is kept for them.
with like_it as materialized (
    select d.feed_id, d.sweep_group, d.longpoll, d.start, d.generation + 1 as generation
    from changefeed.shard_definition d
    where d.feed_id = $1 and d.shard = $2
),
made as (
    insert into changefeed.shard_definition (feed_id, shard, sweep_group, longpoll, start, generation, captured)
    select l.feed_id, n.shard, l.sweep_group, l.longpoll, l.start, l.generation, true
    from like_it l cross join generate_series($4::smallint::integer, $5::smallint::integer) n(shard)
    returning shard
),
begun as (
    -- From before every transaction: see shard_write().
    insert into changefeed.progress (feed_id, shard, last_change_sequence_number, sweep_id, snapshot)
    select l.feed_id, m.shard, l.start, 0, '1:1:' from like_it l cross join made m
),
registered as (
    insert into changefeed.consumer (name, feed_id, shard, cursor)
    select c.name, l.feed_id, m.shard, l.start::text
    from (select distinct c.name from changefeed.consumer c
          where c.feed_id = $1 and c.shard between $2 and $3) c
    cross join like_it l cross join made m
),
closed as (
    update changefeed.shard_definition d set closed = true
    where d.feed_id = $1 and d.shard between $2 and $3
)
select count(*) from made
