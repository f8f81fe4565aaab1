-- A shard of the next generation, like one of those before.
insert into changefeed_shard_def (feed_id, shard, sweep_group, longpoll, start, generation)
select feed_id, ?3, sweep_group, longpoll, start, generation + 1
  from changefeed_shard_def where feed_id = ?1 and shard = ?2
