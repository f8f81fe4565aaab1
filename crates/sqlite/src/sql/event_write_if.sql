-- By way of a view, so that the condition is looked at once, and a number is taken only if it holds.
  insert into changefeed_captured_event (trigger_id, op, old, new, order_key, feed_id, shard)
  select {id}, '{op}', {old}, {new}, {order_key}, {feed}, {shard}
   where {wanted};
