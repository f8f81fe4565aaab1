-- Of the rows noted before, those that have left, or whose place was taken, were deleted.
  insert into changefeed_captured_event (trigger_id, op, old, order_key, feed_id, shard)
  select {id}, 'D', s.old, s.order_key, {feed}, s.shard from changefeed_event_staged s
   where s.trigger_id = {id}
     and ({taken}
          or not exists (select 1 from {table} as changefeed_row where {same}));
  delete from changefeed_event_staged where trigger_id = {id};
