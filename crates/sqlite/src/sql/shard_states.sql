select shard, sweep_group, last_change_sequence_number,
       max(0, cast((julianday('now') - julianday(last_sweep_time)) * 86400000.0 as integer))
  from changefeed_shard
 where feed_id = ?1
 order by shard
