create trigger {trigger} after insert on {table}
begin
  insert into {log} (op, {keys}, before) select 0, {new_key}, {no_row} where {new_not_null};
end
