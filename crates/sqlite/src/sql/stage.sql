-- Notes the rows that this row's statement may remove by REPLACE, see `staging.rs`. Whatever an earlier
-- statement left here is dead; so is everything when no noted row has left its table, because then
-- nothing is at work around this statement. The first row is a mark: it makes a batch, so that the
-- trigger behind the statement finds its own on top.
create trigger {trigger} before {event} on {table}
when exists (select 1 from changefeed_staged where owner = {owner})
  or {any_conflict}
begin
  delete from changefeed_staged
   where owner = {owner}
     and (at is not julianday('now')
          or not exists (
            select 1 from changefeed_staged s
             where s.owner = {owner} and s.at is julianday('now')
               and (s.live <= 0
                    or s.live = 1 and not exists (
                         select 1 from {table} as changefeed_row
                          where {row_is_s} and {s_says_row}))));
  insert into changefeed_staged (owner, batch, at)
  select {owner}, coalesce(max(batch), 0) + 1, julianday('now')
    from changefeed_staged where owner = {owner};
  insert into changefeed_staged (owner, batch, at, live, {ids}, {payload})
  select {owner}, (select max(batch) from changefeed_staged where owner = {owner}),
         julianday('now'), 1, {row_ids}, {row_payload}
    from {table} as changefeed_row
   where ({conflicts})
     and not exists (select 1 from changefeed_staged s
                      where s.owner = {owner} and s.live = 1 and {row_is_s});
end
