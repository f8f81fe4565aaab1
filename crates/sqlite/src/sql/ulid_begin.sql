-- The time, ten random bytes, where the ULIDs of the shard stand, if it ever had any, and how far ahead of the clock a
-- hint may be.
select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer), randomblob(10),
       s.time, s.ulid_high, s.ulid_low, (select ahead_milliseconds from changefeed_ulid_limit)
  from (select 1)
  left join changefeed_shard_ulid s on s.feed_id = ?1 and s.shard_id = ?2
