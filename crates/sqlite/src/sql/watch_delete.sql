create trigger {trigger} after delete on {table}
{untold}begin
  insert into {log} (op, {keys}) select 2, {old_key} where {old_not_null};
end
