-- Numbers go up from 10^15 below the start, or from what is already there.
base as materialized (
    select d.shard, d.start,
           coalesce(d.backfilled_to, greatest(d.start - 1000000000000000, d.trimmed_to, 0,
               coalesce((select max(n.change_sequence_number) from changefeed.numbered n
                         where n.feed_id = $1 and n.shard = d.shard
                           and n.change_sequence_number <= d.start), 0))) as number
    from changefeed.shard_definition d
    where d.feed_id = $1
),
-- Through the view, which refuses a number above the start.
numbered as (
    insert into changefeed.change (feed_id, shard, change_id, change_sequence_number)
    select $1, k.shard, k.change_id,
           b.number + row_number() over (partition by k.shard order by k.ord)
    from picked k join base b on b.shard = k.shard
),
moved as (
    update changefeed.shard_definition d
    set backfilled_to = b.number + c.count
    from base b
    join (select k.shard, count(*) from picked k group by k.shard) c on c.shard = b.shard
    where d.feed_id = $1 and d.shard = b.shard
),
noted as (
    update changefeed.backfill b
    set done = b.done + (select count(*) from picked),
        last_key = coalesce((select s.key from seen s order by s.ord desc limit 1), b.last_key)
    where b.feed_id = $1
)
select (select count(*) from seen), (select count(*) from picked)
