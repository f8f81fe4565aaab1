-- Consumers are registered at its beginning: what they have not read is kept for them.
insert into changefeed_consumer (name, feed_id, shard, cursor)
select distinct c.name, d.feed_id, ?3, cast(d.start as text)
  from changefeed_shard_def d
  join changefeed_shard_def o on o.feed_id = d.feed_id and o.generation = d.generation
  join changefeed_consumer c on c.feed_id = o.feed_id and c.shard = o.shard
 where d.feed_id = ?1 and d.shard = ?2
