-- Has a shard begin elsewhere, in a new epoch: after a cursor, or at its beginning (@P4 is null).
declare @name varchar(100) = convert(varchar(100), @P1), @epoch int;
begin transaction;
update changefeed.subscription_shard set @epoch = epoch = epoch + 1, held = null, stopped = null
where name = @name and shard = @P2;
if @epoch is not null
begin
    delete from changefeed.consumer where name = @name and feed_id = @P3 and shard = @P2;
    if @P4 is not null
        insert into changefeed.consumer (name, feed_id, shard, [cursor])
        values (@name, @P3, @P2, convert(varchar(26), @P4));
end;
commit transaction;
select @epoch
