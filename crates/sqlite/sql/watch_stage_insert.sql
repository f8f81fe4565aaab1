-- Notes the rows that this insert may remove by REPLACE, for which no delete trigger fires.
create trigger {trigger} before insert on {table}
begin
  delete from changefeed_staged where feed_id = {stage};
  insert into changefeed_staged (feed_id, {keys})
  {conflicts};
end
