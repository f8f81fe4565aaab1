create trigger {trigger} after delete on {table}
{untold}begin
  insert into {log} (op, {keys}, before) select 2, {old_key}, {old_row} where {old_not_null};
end
