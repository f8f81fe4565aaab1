-- Removes old changes of a shard that every consumer has read, and those that are so old that nobody holds them
-- back. Returns how many, and the slowest
-- consumer if it has kept some from being removed. Numbers below the start are as old as the
-- backfill that gave them.
declare @feed_id smallint = @P1, @shard smallint = @P2, @left bigint = @P5;
declare @before datetime2(6) = dateadd(millisecond, -@P4, dateadd(second, -@P3, sysutcdatetime()));
-- Null if there is no such age.
declare @unread_before datetime2(6) = dateadd(millisecond, -@P7, dateadd(second, -@P6, sysutcdatetime()));
declare @old bigint, @unread bigint, @upto bigint, @read bigint, @slowest nvarchar(100), @highest bigint;
declare @gone table (change_sequence_number bigint not null primary key, change_id bigint not null);
-- Before anybody is kept waiting: it only grows.
select top (1) @old = p.last_change_sequence_number
from changefeed.progress p
where p.feed_id = @feed_id and p.shard = @shard and p.swept_at <= @before
order by p.swept_at desc, p.last_change_sequence_number desc;
select top (1) @unread = p.last_change_sequence_number
from changefeed.progress p
where p.feed_id = @feed_id and p.shard = @shard and p.swept_at <= @unread_before
order by p.swept_at desc, p.last_change_sequence_number desc;
begin transaction;
-- Locked in a statement of its own, so that what follows sees the newest state.
-- FORCESEEK: a scan would wait for whoever is at work on another shard. UPDLOCK: see sweep_shard.
update s set trimmed_to = s.trimmed_to
from changefeed.shard s with (updlock, forceseek)
where s.feed_id = @feed_id and s.shard = @shard;
-- One may have begun until now.
if exists (select 1 from changefeed.backfill b
           where b.feed_id = @feed_id and (b.finished_at is null or b.finished_at > @before))
    set @old = null;
if exists (select 1 from changefeed.backfill b
           where b.feed_id = @feed_id and (b.finished_at is null or b.finished_at > @unread_before))
    set @unread = null;
-- An application may move its cursor in a long transaction of its own. Where the database does not version
-- rows, whoever reads it then waits, and with us every sweep of the shard: rather trim another time.
begin try
    select top (1) @read = convert(bigint, c.[cursor]), @slowest = c.name
    from changefeed.consumer c with (nowait) --@sqlserver
    --@babelfish from changefeed.consumer c
    where c.feed_id = @feed_id and c.shard = @shard
    order by convert(bigint, c.[cursor]), c.name;
end try
begin catch
    if error_number() <> 1222 throw;
    rollback transaction;
    select count_big(*), @slowest from @gone;
    return;
end catch;
set @upto = case when @read < @old then @read else @old end;
if @upto < @unread set @upto = @unread;
if @old is null or @upto >= @old set @slowest = null;
insert into @gone (change_sequence_number, change_id)
select top (@left) c.change_sequence_number, c.change_id
from changefeed.change c
where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number <= @upto
  -- Or the server may not use the index of what has a number.
  and c.change_sequence_number is not null
order by c.change_sequence_number;
select @highest = max(g.change_sequence_number) from @gone g;
if @highest is not null
begin
    -- Row by row, by the whole key: a join that reads the whole table would wait for writers.
    delete c from @gone g
    join changefeed.change c with (forceseek) on c.change_id = g.change_id
    where c.feed_id = @feed_id and c.shard = @shard
    option (loop join, force order) --@sqlserver
    ;
    -- Only captured feeds have links, each under an id of its own.
    if exists (select 1 from changefeed.feed_source s where s.feed_id = @feed_id and s.kind = 'captured')
        delete r from @gone g
        join changefeed.change_row r with (forceseek) on r.change_id = g.change_id and r.feed_id = @feed_id
        option (loop join, force order) --@sqlserver
        ;
    update s
    set trimmed_to = case when s.trimmed_to < @highest then @highest else s.trimmed_to end
    from changefeed.shard s with (forceseek)
    where s.feed_id = @feed_id and s.shard = @shard;
    -- The marks of what is gone; the newest row stays.
    delete from changefeed.progress
    where feed_id = @feed_id and shard = @shard and last_change_sequence_number < @highest;
end;
commit transaction;
select count_big(*), @slowest from @gone
