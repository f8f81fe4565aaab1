-- The time, ten random bytes, and where the ULIDs of the shard stand, if it ever had any.
select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer), randomblob(10),
       s.time, s.ulid_high, s.ulid_low
  from (select 1)
  left join changefeed_shard_ulid s on s.feed_id = ?1 and s.shard_id = ?2
