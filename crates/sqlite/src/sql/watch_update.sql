-- A row that moved to another key is gone from the old one.
create trigger {trigger} after update on {table}
begin
  insert into {log} (op, {keys}, before)
  select 2, {old_key}, {old_row} where ({moved}) and {old_not_null};
  insert into {log} (op, {keys}, columns, before)
  select not ({moved}), {new_key}, {columns}, case when {moved} then {no_row} else {old_row} end where {new_not_null};
end
