update changefeed_shard_ulid set ulid_low = ?6
 where feed_id = ?1 and shard_id = ?2 and time = ?3 and ulid_high = ?4 and ulid_low = ?5
