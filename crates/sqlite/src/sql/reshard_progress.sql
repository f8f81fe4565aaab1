-- When it began.
insert into changefeed_progress (feed_id, shard, change_sequence_number, marked_at)
select feed_id, ?3, start, cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
  from changefeed_shard_def where feed_id = ?1 and shard = ?2
