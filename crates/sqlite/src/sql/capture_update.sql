-- A row that moved to another key or shard is deleted at the place it left, and inserted at the other; and so is one
-- that leaves the feed or enters it.
create trigger {trigger} after update on {table}
begin
  insert into changefeed_captured (feed_id, shard, op, {keys}, old, new)
  select {feed}, {old_shard}, 'D', {old_key}, {old_image}, null where {left};
  insert into changefeed_captured (feed_id, shard, op, {keys}, old, new)
  select {feed}, {new_shard}, case when {entered} then 'I' else 'U' end, {new_key},
         {update_old_image}, {new_image} where {told};
end
