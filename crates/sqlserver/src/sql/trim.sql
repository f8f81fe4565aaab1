-- Removes old changes of a shard that every consumer has read. Returns how many, and the slowest
-- consumer if it has kept some from being removed. Numbers below the start are as old as the
-- backfill that gave them.
declare @feed_id smallint = @P1, @shard smallint = @P2, @left bigint = @P5;
declare @before datetime2(6) = dateadd(millisecond, -@P4, dateadd(second, -@P3, sysutcdatetime()));
declare @old bigint, @upto bigint, @read bigint, @slowest varchar(100), @highest bigint;
declare @gone table (change_sequence_number bigint not null primary key, change_id bigint not null);
begin transaction;
-- Locked in a statement of its own, so that what follows sees the newest state.
update changefeed.shard set trimmed_to = trimmed_to where feed_id = @feed_id and shard = @shard;
select @old = max(p.last_change_sequence_number)
from changefeed.progress p
where p.feed_id = @feed_id and p.shard = @shard and p.swept_at <= @before
  and not exists (select 1 from changefeed.backfill b
                  where b.feed_id = @feed_id
                    and (b.finished_at is null or b.finished_at > @before));
select top (1) @read = convert(bigint, c.[cursor]), @slowest = c.name
from changefeed.consumer c
where c.feed_id = @feed_id and c.shard = @shard
order by convert(bigint, c.[cursor]), c.name;
set @upto = case when @read < @old then @read else @old end;
if @old is null or @upto >= @old set @slowest = null;
insert into @gone (change_sequence_number, change_id)
select top (@left) c.change_sequence_number, c.change_id
from changefeed.change c
where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number <= @upto
order by c.change_sequence_number;
select @highest = max(g.change_sequence_number) from @gone g;
if @highest is not null
begin
    delete c from changefeed.change c
    join @gone g on g.change_id = c.change_id
    where c.feed_id = @feed_id and c.shard = @shard;
    -- Only captured feeds have links, each under an id of its own.
    delete r from changefeed.change_row r
    join @gone g on g.change_id = r.change_id
    where exists (select 1 from changefeed.feed_source s
                  where s.feed_id = @feed_id and s.kind = 'captured');
    update changefeed.shard
    set trimmed_to = case when trimmed_to < @highest then @highest else trimmed_to end
    where feed_id = @feed_id and shard = @shard;
    -- The marks of what is gone; the newest row stays.
    delete from changefeed.progress
    where feed_id = @feed_id and shard = @shard and last_change_sequence_number < @highest;
end;
commit transaction;
select count_big(*), @slowest from @gone
