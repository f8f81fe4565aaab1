insert into changefeed_captured_event (trigger_id, op, new, order_key, feed_id, shard)
select {id}, 'I', row_json, row_order, {feed}, row_shard
  from (select {new} as row_json, {order_key} as row_order, {shard} as row_shard,
               {wanted} as row_wanted
          from {table} as changefeed_row
         {resume}
         order by {identity}
         limit {batch})
 where row_wanted
