-- Tells of the noted rows that have left, and forgets the batch of this statement. Where nothing was
-- noted, looking is all that this costs.
create trigger {trigger} after {event} on {table}
when exists (select 1 from changefeed_staged where owner = {owner})
begin
  update changefeed_staged set live = 2
   where owner = {owner} and live = 1 and {left};
{tell};
  update changefeed_staged set live = case when {new_is_staged} then -1 else 0 end
   where owner = {owner} and (live = 2 or live = 0 and {new_is_staged});{follow}
  delete from changefeed_staged
   where owner = {owner}
     and batch = (select max(s.batch) from changefeed_staged s where s.owner = {owner});
end
