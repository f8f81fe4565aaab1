-- Shards whose ULIDs tell a time further in the future than a time hint may be.
select s.feed_id, s.shard_id, s.time - n.now
  from changefeed_shard_ulid s, changefeed_ulid_limit l,
       (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) as now) n
 where s.time > n.now + l.ahead_milliseconds
 order by s.feed_id, s.shard_id
 limit 20
