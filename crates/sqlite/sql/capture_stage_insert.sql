-- Notes the rows that this insert may remove by REPLACE, for which no delete trigger fires.
create trigger {trigger} before insert on {table}
begin
  delete from changefeed_staged where feed_id = {feed};
  insert into changefeed_staged (feed_id, shard, {keys})
  {conflicts};
end
