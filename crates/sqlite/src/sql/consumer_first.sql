insert into changefeed_consumer (name, feed_id, shard, cursor)
values (?1, ?2, ?3, ?4)
on conflict (name, feed_id, shard) do nothing
