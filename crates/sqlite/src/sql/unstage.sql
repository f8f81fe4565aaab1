-- This row is spoken for, if it is still the same: with recursive triggers a REPLACE does fire the
-- delete trigger. Rows that left before it are told now: when the action of a foreign key deletes the
-- very row that a statement is about to write, nothing comes after it.
create trigger {trigger} after delete on {table}
when exists (select 1 from changefeed_staged where owner = {owner})
begin
  delete from changefeed_staged
   where owner = {owner} and live = 1 and {old_is_staged} and {staged_says_old};
  update changefeed_staged set live = 2
   where owner = {owner} and live = 1
     and not exists (select 1 from {table} as changefeed_row where {row_is_staged});
{tell};
  update changefeed_staged set live = 0 where owner = {owner} and live = 2;
end
