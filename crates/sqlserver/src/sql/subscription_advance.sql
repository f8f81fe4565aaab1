update changefeed.subscription_shard
set held = @P5, sent = sent + @P6, lost = lost + @P7, parked = parked + @P8
where name = convert(varchar(100), @P1) and shard = @P2 and generation = @P3 and epoch = @P4
