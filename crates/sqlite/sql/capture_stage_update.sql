-- The same for an update or replace.
create trigger {trigger} before update{of} on {table}
begin
  delete from changefeed_staged where feed_id = {feed};
  insert into changefeed_staged (feed_id, shard, {keys})
  {conflicts};
end
