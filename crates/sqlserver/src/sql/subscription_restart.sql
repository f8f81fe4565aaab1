update changefeed.subscription_shard set epoch = epoch + 1, held = null, stopped = null
where name = convert(varchar(100), @P1) and shard = @P2
