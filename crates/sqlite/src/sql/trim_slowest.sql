select c.name, cast(c.cursor as integer)
  from changefeed_consumer c
 where c.feed_id = ?1 and c.shard = ?2
 order by 2, 1
 limit 1
