-- Moves the position of a shard and counts, if the lease's generation, the epoch and the position are as believed. One
-- batch: a process that is stopped between two of them would keep the shard's row locked, and who takes over would
-- wait for it. Returns whether the shard is ours, and whether the position was moved.
declare @name varchar(100) = convert(varchar(100), @P1), @lane int, @moved int = 0;
begin transaction;
select @lane = count(*) from changefeed.subscription_shard s with (updlock, rowlock)
where s.name = @name and s.shard = @P2 and s.generation = @P3 and s.epoch = @P4;
if @lane > 0
begin
    update changefeed.consumer set [cursor] = convert(varchar(26), @P9), updated_at = sysutcdatetime()
    where name = @name and feed_id = @P10 and shard = @P2 and [cursor] = convert(varchar(26), @P8);
    set @moved = @@rowcount;
    if @P8 is null
    begin
        -- Differs: there is no `on conflict`; the range lock keeps others from inserting meanwhile.
        insert into changefeed.consumer (name, feed_id, shard, [cursor])
        select @name, @P10, @P2, convert(varchar(26), @P9)
        where not exists (select 1 from changefeed.consumer c with (updlock, holdlock, rowlock)
                          where c.name = @name and c.feed_id = @P10 and c.shard = @P2);
        set @moved = @@rowcount;
    end;
end;
if @moved > 0
begin
    update changefeed.subscription_shard
    set held = @P5, sent = sent + @P6, lost = lost + @P7, parked = parked + case when @P11 is null then 0 else 1 end
    where name = @name and shard = @P2;
    if @P11 is not null
        insert into changefeed.subscription_parked (name, shard, epoch, [cursor], reason)
        select @name, @P2, @P4, convert(varchar(26), @P9), @P11
        where not exists (select 1 from changefeed.subscription_parked p
                          where p.name = @name and p.shard = @P2 and p.epoch = @P4
                            and p.[cursor] = convert(varchar(26), @P9));
end;
commit transaction;
select @lane, @moved
