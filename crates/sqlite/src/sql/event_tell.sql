  insert into changefeed_captured_event (trigger_id, op, old, order_key, feed_id, shard)
  select {id}, 'D', old, order_key, {feed}, shard from changefeed_staged
   where owner = {owner} and live = 2 and wanted
