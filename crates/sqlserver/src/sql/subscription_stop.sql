update changefeed.subscription_shard set stopped = @P3
where name = convert(varchar(100), @P1) and shard = @P2
  and generation = case when @P4 < 0 then generation else @P4 end
