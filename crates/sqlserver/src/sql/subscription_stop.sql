-- Stops a shard; without a generation (@P4 below 0) its position is given up as well, so that retention goes on.
declare @name varchar(100) = convert(varchar(100), @P1), @stopped int;
begin transaction;
update changefeed.subscription_shard set stopped = @P3
where name = @name and shard = @P2 and generation = case when @P4 < 0 then generation else @P4 end;
set @stopped = @@rowcount;
if @stopped > 0 and @P4 < 0
    delete from changefeed.consumer where name = @name and feed_id = @P5 and shard = @P2;
commit transaction;
select @stopped
