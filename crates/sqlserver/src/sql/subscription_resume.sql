update changefeed.subscription_shard set stopped = null where name = convert(varchar(100), @P1)
