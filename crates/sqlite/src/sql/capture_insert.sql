create trigger {trigger} after insert on {table}
begin
  insert into changefeed_captured (feed_id, shard, op, {keys}, old, new)
  select {feed}, {new_shard}, 'I', {new_key}, null, {new_image} where {new_here};
end
