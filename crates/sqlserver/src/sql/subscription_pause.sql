-- Pauses for a reason, or resumes (@P2 is null): then shards that were stopped are tried again.
declare @name varchar(100) = convert(varchar(100), @P1), @paused int;
begin transaction;
update changefeed.subscription set paused = @P2 where name = @name;
set @paused = @@rowcount;
if @P2 is null
    update changefeed.subscription_shard set stopped = null where name = @name;
commit transaction;
select @paused
