select p.shard, p.generation, p.epoch, c.[cursor], p.held, p.stopped, p.sent, p.lost, p.parked,
       datediff_big(millisecond, p.failing_since, sysutcdatetime()), p.failure
from changefeed.subscription_shard p
left join changefeed.consumer c on c.name = p.name and c.feed_id = @P2 and c.shard = p.shard
where p.name = convert(varchar(100), @P1) and p.shard = @P3
