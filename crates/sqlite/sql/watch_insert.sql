-- A row that replaces one of the same key is an update.
create trigger {trigger} after insert on {table}
begin
{settle}
  insert into {log} (op, {keys})
  select exists (select 1 from changefeed_staged s where s.feed_id = {stage} and {new_is_staged}),
         {new_key}
   where {new_not_null};
  delete from changefeed_staged where feed_id = {stage};
end
