-- Numbers go up from 10^15 below the start, or, where somebody has put numbers there by hand, from
-- the highest of these.
base as materialized (
    select d.shard, d.start, coalesce(d.backfilled_to, case
               when exists (select from changefeed.numbered n
                            where n.feed_id = $1 and n.shard = d.shard
                              and n.change_sequence_number > low.number
                              and n.change_sequence_number <= low.number + b.total)
               then (select max(n.change_sequence_number) from changefeed.numbered n
                     where n.feed_id = $1 and n.shard = d.shard
                       and n.change_sequence_number <= d.start)
               else low.number end) as number
    from changefeed.shard_definition d
    cross join lateral (
        select greatest(d.start - 1000000000000000, d.trimmed_to, 0) as number) low
    join changefeed.backfill b on b.feed_id = d.feed_id
    where d.feed_id = $1
),
counted as materialized (
    select k.shard, count(*) from picked k group by k.shard
),
numbered as (
    insert into changefeed.numbered (feed_id, shard, change_id, change_sequence_number)
    select $1, k.shard, k.change_id,
           b.number + row_number() over (partition by k.shard order by k.ord)
    from picked k join base b on b.shard = k.shard
),
moved as (
    update changefeed.shard_definition d
    set backfilled_to = b.number + c.count
    from base b join counted c on c.shard = b.shard
    where d.feed_id = $1 and d.shard = b.shard
),
noted as (
    update changefeed.backfill b
    set done = b.done + (select count(*) from picked),
        last_key = coalesce((select s.key from seen s order by s.ord desc limit 1), b.last_key)
    where b.feed_id = $1
)
select (select count(*) from seen), (select count(*) from picked),
       -- The caller rolls back what does not fit.
       exists (select from base b join counted c on c.shard = b.shard
               where b.number + c.count > b.start)
