-- A row that moved to another key is gone from the old one.
create trigger {trigger} after update on {table}
begin
  delete from changefeed_staged where feed_id = {stage} and {staged_is_old};
{settle}
  insert into {log} (op, {keys})
  select 2, {old_key} where ({moved}) and {old_not_null};
  insert into {log} (op, {keys}, columns)
  select case when {moved}
              then exists (select 1 from changefeed_staged s
                            where s.feed_id = {stage} and {new_is_staged})
              else 1 end, {new_key}, {columns}
   where {new_not_null};
  delete from changefeed_staged where feed_id = {stage};
end
