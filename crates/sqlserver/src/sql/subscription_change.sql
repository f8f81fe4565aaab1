update changefeed.subscription set definition = @P2 where name = convert(varchar(100), @P1)
