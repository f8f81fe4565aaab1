-- Nothing is stored for a shard that is not there.
insert into changefeed_consumer (name, feed_id, shard, cursor)
select ?1, feed_id, shard, ?4 from changefeed_shard_def where feed_id = ?2 and shard = ?3
on conflict (name, feed_id, shard) do update
   set cursor = excluded.cursor, updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
