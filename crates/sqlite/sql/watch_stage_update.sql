-- The same for an update or replace.
create trigger {trigger} before update on {table}
begin
  delete from changefeed_staged where feed_id = {stage};
  insert into changefeed_staged (feed_id, {keys})
  {conflicts};
end
