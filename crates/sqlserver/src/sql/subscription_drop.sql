delete c from changefeed.consumer c
join changefeed.subscription s on s.name = c.name and s.feed_id = c.feed_id
where s.name = convert(varchar(100), @P1);
delete from changefeed.subscription_parked where name = convert(varchar(100), @P1);
delete from changefeed.subscription_shard where name = convert(varchar(100), @P1);
delete from changefeed.subscription where name = convert(varchar(100), @P1)
