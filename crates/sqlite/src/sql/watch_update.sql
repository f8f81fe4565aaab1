-- A row that moved to another key is gone from the old one.
create trigger {trigger} after update on {table}
begin
  insert into {log} (op, {keys})
  select 2, {old_key} where ({moved}) and {old_not_null};
  insert into {log} (op, {keys}, columns)
  select not ({moved}), {new_key}, {columns} where {new_not_null};
end
