update changefeed.subscription_shard set generation = @P3
where name = convert(varchar(100), @P1) and shard = @P2 and generation <= @P3
