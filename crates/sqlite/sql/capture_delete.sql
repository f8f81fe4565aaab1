create trigger {trigger} after delete on {table}
{untold}begin
  insert into changefeed_captured (feed_id, shard, {keys})
  values ({feed}, {old_shard}, {old_key});
end
