-- Notes since when the sink of a shard takes nothing, and why; or that it does.
update changefeed.subscription_shard
set failure = @P4,
    failing_since = case when @P4 is not null then isnull(failing_since, sysutcdatetime()) end
where name = convert(varchar(100), @P1) and shard = @P2 and generation = @P3
