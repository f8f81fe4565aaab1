-- This row is spoken for, if it is still the same: with recursive triggers a REPLACE does fire the
-- delete trigger.
create trigger {trigger} after delete on {table}
when exists (select 1 from changefeed_staged where owner = {owner})
begin
  delete from changefeed_staged
   where owner = {owner} and live = 1 and {old_is_staged} and {staged_says_old};
end
