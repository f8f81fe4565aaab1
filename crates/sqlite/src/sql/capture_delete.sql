create trigger {trigger} after delete on {table}
{untold}begin
  insert into changefeed_captured (feed_id, shard, op, {keys}, old, new)
  select {feed}, {old_shard}, 'D', {old_key}, {old_image}, null where {old_here};
end
