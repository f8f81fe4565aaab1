select p.shard, p.generation, p.epoch, c.cursor, p.held, p.stopped, p.sent, p.lost, p.parked,
       cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - p.failing_since, p.failure
  from changefeed_subscription_shard p
  left join changefeed_consumer c on c.name = p.name and c.feed_id = ?2 and c.shard = p.shard
 where p.name = ?1 and p.shard = ?3
