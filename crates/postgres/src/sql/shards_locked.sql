-- Shards that cannot be locked right now, which is what every sweep tries.
select format('feed %s', f.name), format('shard %s is locked, so its changes get no numbers', d.shard)
from changefeed.shard_definition d join changefeed.feed f on f.feed_id = d.feed_id
where (d.feed_id, d.shard) not in (
    select l.feed_id, l.shard from (
        select s.feed_id, s.shard from changefeed.shard_definition s for no key update skip locked) l)
order by d.feed_id, d.shard
limit 100
