-- Differs: there is no `on conflict`; the update lock on the subscription's row lets one at a time look.
insert into changefeed.subscription_shard (name, shard)
select s.name, @P2 from changefeed.subscription s with (updlock, rowlock)
where s.name = convert(varchar(100), @P1)
  and not exists (select 1 from changefeed.subscription_shard p where p.name = s.name and p.shard = @P2)
