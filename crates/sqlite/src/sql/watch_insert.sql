create trigger {trigger} after insert on {table}
begin
  insert into {log} (op, {keys}) select 0, {new_key} where {new_not_null};
end
