select s.name, s.feed_id, s.definition, s.paused,
       p.shard, p.generation, p.epoch, c.cursor, p.held, p.stopped, p.sent, p.lost, p.parked,
       cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - p.failing_since, p.failure
  from changefeed_subscription s
  left join changefeed_subscription_shard p on p.name = s.name
  left join changefeed_consumer c on c.name = s.name and c.feed_id = s.feed_id and c.shard = p.shard
 order by s.name, p.shard
