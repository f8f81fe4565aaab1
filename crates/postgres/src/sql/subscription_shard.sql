select p.shard, p.generation, p.epoch, c.cursor, p.held, p.stopped, p.sent, p.lost, p.parked,
       (extract(epoch from clock_timestamp() - p.failing_since) * 1000)::bigint, p.failure
from changefeed.subscription_shard p
left join changefeed.consumer c on c.name = p.name and c.feed_id = $2 and c.shard = p.shard
where p.name = $1 and p.shard = $3
