insert into changefeed.subscription (name, feed_id, definition)
select convert(varchar(100), @P1), f.feed_id, @P3 from changefeed.feed f where f.feed_id = @P2
