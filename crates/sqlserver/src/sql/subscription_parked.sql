select top (@P2) shard, epoch, [cursor], reason from changefeed.subscription_parked
where name = convert(varchar(100), @P1)
order by parked_at desc, shard, [cursor] desc
