  update changefeed_change_id set value = value + 1;
  insert into changefeed_event
    (change_id, trigger_id, op, old, new, order_key, feed_id, shard, created_at, due_at)
  values ((select value from changefeed_change_id), {id}, '{op}', {old}, {new}, {order_key},
          {feed}, {shard},
          cast((julianday('now') - 2440587.5) * 86400000.0 as integer),
          cast((julianday('now') - 2440587.5) * 86400000.0 as integer) + {wait_ms});
