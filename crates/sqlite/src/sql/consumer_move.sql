update changefeed_consumer
   set cursor = ?4, updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
 where name = ?1 and feed_id = ?2 and shard = ?3 and cursor = ?5
