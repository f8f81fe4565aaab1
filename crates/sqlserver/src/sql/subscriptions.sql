select s.name, s.feed_id, s.definition, s.paused,
       p.shard, p.generation, p.epoch, c.[cursor], p.held, p.stopped, p.sent, p.lost, p.parked,
       datediff_big(millisecond, p.failing_since, sysutcdatetime()), p.failure
from changefeed.subscription s
left join changefeed.subscription_shard p on p.name = s.name
left join changefeed.consumer c on c.name = s.name and c.feed_id = s.feed_id and c.shard = p.shard
order by s.name collate Latin1_General_BIN2, p.shard
