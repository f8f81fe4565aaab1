create trigger {trigger} after insert on {table}
begin
  insert into changefeed_captured (feed_id, shard, {keys})
  values ({feed}, {new_shard}, {new_key});
end
