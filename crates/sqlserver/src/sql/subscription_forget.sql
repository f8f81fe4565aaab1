delete from changefeed.consumer
where name = convert(varchar(100), @P1) and feed_id = @P2 and shard = @P3
