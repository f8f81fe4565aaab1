insert into changefeed.subscription_parked (name, shard, epoch, [cursor], reason)
select convert(varchar(100), @P1), @P2, @P3, convert(varchar(26), @P4), @P5
where not exists (
    select 1 from changefeed.subscription_parked
    where name = convert(varchar(100), @P1) and shard = @P2 and epoch = @P3
      and [cursor] = convert(varchar(26), @P4))
