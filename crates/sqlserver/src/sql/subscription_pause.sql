update changefeed.subscription set paused = nullif(@P2, N'') where name = convert(varchar(100), @P1)
