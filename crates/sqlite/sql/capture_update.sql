-- A row that moved to another key or shard is also a change at the place it left.
create trigger {trigger} after update on {table}
begin
  insert into changefeed_captured (feed_id, shard, {keys})
  select {feed}, {old_shard}, {old_key} where {moved};
  insert into changefeed_captured (feed_id, shard, {keys})
  values ({feed}, {new_shard}, {new_key});
end
