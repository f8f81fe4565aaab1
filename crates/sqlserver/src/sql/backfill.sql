-- One batch of a backfill: picks rows, gives them numbers, moves the position. Returns how many
-- rows were looked at, how many got a number, done, total, whether it is finished, and whether the
-- numbers do not fit below the start.
declare @feed_id smallint = @P1, @limit int = @P2;
declare @last nvarchar(max), @done bigint, @total bigint, @finished datetime2(3);
declare @seen int, @added bigint, @overflow bit = 0;
{declare}
declare @picked table (place int identity primary key, shard smallint not null,
                       [key] nvarchar(max) not null, change_id bigint null,
                       image nvarchar(max) null);
declare @ids table (change_id bigint not null primary key, shard smallint not null);
declare @base table (shard smallint not null primary key, number bigint not null,
                     start bigint not null, count bigint not null);
begin transaction;
-- One backfill of a feed at a time. Readers may look at the row meanwhile.
--@babelfish update changefeed.backfill set done = done where feed_id = @feed_id;
select @last = b.last_key, @done = b.done, @total = b.total, @finished = b.finished_at
from changefeed.backfill b with (updlock, rowlock) where b.feed_id = @feed_id;
if @finished is not null
begin
    commit transaction;
    select 0, convert(bigint, 0), @done, @total, convert(bit, 1), @overflow;
    return;
end;
{position}
insert into @picked (shard, [key], change_id, image)
select top (@limit) {shard}, {key}, {change_id}, {image}
from {table} t
where {resume}
order by {order}
option (recompile);
set @seen = @@rowcount;
{ids}
set @added = @@rowcount;
-- Numbers go up from 10^15 below the start, or, where somebody has put numbers there by hand, from
-- the highest of these.
insert into @base (shard, number, start, count)
select s.shard, isnull(s.backfilled_to, case
           when exists (select 1 from changefeed.change c
                        where c.feed_id = @feed_id and c.shard = s.shard
                          and c.change_sequence_number > l.low
                          and c.change_sequence_number <= l.low + @total
                          -- Or the server may not use the index of what has a number.
                          and c.change_sequence_number is not null)
           then (select max(c.change_sequence_number) from changefeed.change c
                 where c.feed_id = @feed_id and c.shard = s.shard
                   and c.change_sequence_number <= l.start and c.change_sequence_number is not null)
           else l.low end), l.start, n.count
from changefeed.shard s
join (select i.shard, count_big(*) as count from @ids i group by i.shard) n on n.shard = s.shard
cross apply (select isnull(s.start, s.last_change_sequence_number) as start) b
cross apply (select b.start, (select max(v.number)
             from (values (b.start - convert(bigint, 1000000000000000)), (s.trimmed_to), (convert(bigint, 0))) v(number)) as low) l
where s.feed_id = @feed_id;
if exists (select 1 from @base b where b.number + b.count > b.start)
begin
    set @overflow = 1;
    -- Readers must not wait for ever for what cannot come.
    update changefeed.backfill set finished_at = sysutcdatetime() where feed_id = @feed_id;
{forget}
end
else
begin
    update s set backfilled_to = b.number + b.count
    from @base b join changefeed.shard s with (forceseek) on s.feed_id = @feed_id and s.shard = b.shard
    option (loop join, force order) --@sqlserver
    ;
    insert into changefeed.change (feed_id, shard, change_id, change_sequence_number)
    select @feed_id, i.shard, i.change_id,
           b.number + row_number() over (partition by i.shard order by i.change_id)
    from @ids i join @base b on b.shard = i.shard;
    select top (1) @last = p.[key] from @picked p order by p.place desc;
    update changefeed.backfill
    set done = done + @added, last_key = @last,
        finished_at = case when @seen < @limit then sysutcdatetime() end
    where feed_id = @feed_id;
end;
commit transaction;
select @seen, @added, @done + @added, @total,
       convert(bit, case when @seen < @limit then 1 else 0 end), @overflow
