-- Removes a subscription and its position.
declare @name varchar(100) = convert(varchar(100), @P1), @gone int;
begin transaction;
delete c from changefeed.consumer c
join changefeed.subscription s on s.name = c.name and s.feed_id = c.feed_id
where s.name = @name;
delete from changefeed.subscription_parked where name = @name;
delete from changefeed.subscription_shard where name = @name;
delete from changefeed.subscription where name = @name;
set @gone = @@rowcount;
commit transaction;
select @gone
