create trigger {trigger} after delete on {table}
begin
  delete from changefeed_staged where feed_id = {stage} and {staged_is_old};
  insert into {log} (op, {keys}) select 2, {old_key} where {old_not_null};
end
