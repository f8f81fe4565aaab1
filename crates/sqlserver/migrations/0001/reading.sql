-- The next changes of a shard, in order of their numbers: for readers by SQL. @after is the number of the last
-- change that was read, and null for the oldest that is kept. A number that was trimmed or never given is an
-- error, never a silent jump; a reader of backfilled numbers stops where the backfill stands. Live numbers have no
-- gaps: where the database does not version rows, a scan that waited for a sweep may have passed some, and what
-- comes after them is left for the next call. The same rules as those of our own reader, in sql/page.sql.
-- `op` and `key` are those of captured changes, the key as a JSON array of texts in the order of the primary key;
-- `old` and `new` those of feeds with images. They are read with our rights, feed by feed: see grant_read.
create procedure changefeed.[read]
    @feed_id smallint, @shard smallint, @after bigint = null, @limit int = 1000, @incarnation char(32) = null
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @page table (change_sequence_number bigint not null primary key, change_id bigint not null,
        op varchar(10) null, [key] nvarchar(max) null, [old] nvarchar(max) null, [new] nvarchar(max) null);
    declare @from bigint = isnull(@after, 0), @upto bigint = 9223372036854775807;
    declare @start bigint, @trimmed bigint, @last bigint, @gap bigint, @begun int, @message nvarchar(400);
    if @limit is null or @limit < 1
        throw 55020, 'changefeed: a page needs a limit of at least 1', 1;
    if not exists (select 1 from changefeed.feed_access a where a.feed_id = @feed_id)
        throw 55023, 'changefeed: there is no such feed, or you may not read it; its owner can allow it with changefeed.grant_read', 1;
    if @incarnation <> (select top (1) i.incarnation from changefeed.incarnation i order by i.number desc)
        throw 55024, 'changefeed: this database was recovered from a backup, and the cursor belongs to another life of it; compare the current state of the data with yours, then go on from the first or the last change, with the incarnation of now', 1;
    select @begun = count(*) from changefeed.backfill b where b.feed_id = @feed_id;
    select @upto = isnull(s.start, s.last_change_sequence_number)
    from changefeed.shard s
    where s.feed_id = @feed_id and s.shard = @shard
      and @from < isnull(s.start, s.last_change_sequence_number)
      and exists (select 1 from changefeed.backfill b
                  where b.feed_id = @feed_id and b.finished_at is null);
    insert into @page (change_sequence_number, change_id, op, [key], [old], [new])
    select top (@limit) c.change_sequence_number, c.change_id, o.name, r.[key], r.[old], r.[new]
    from changefeed.change c
    left join changefeed.change_row r with (forceseek) on r.change_id = c.change_id and r.feed_id = c.feed_id
    left join changefeed.op_name o on o.op = r.op
    where c.feed_id = @feed_id and c.shard = @shard
      and c.change_sequence_number > @from and c.change_sequence_number <= @upto
      -- Or the server may not use the index of what has a number.
      and c.change_sequence_number is not null
    order by c.change_sequence_number
    option (optimize for (@from unknown, @upto unknown, @limit = 1000));
    -- After the page, because a trim in between then shows as an expired cursor.
    select @start = isnull(s.start, s.last_change_sequence_number), @trimmed = s.trimmed_to,
           @last = s.last_change_sequence_number
    from changefeed.shard s where s.feed_id = @feed_id and s.shard = @shard;
    if @last is null
        throw 55013, 'changefeed: there is no such feed or shard', 1;
    if @after < @trimmed
    begin
        set @message = concat(N'changefeed: cursor ', @after, N' has expired: changes up to ', @trimmed,
            N' were trimmed; read the current state of the data, then go on from the first or the last change');
        throw 55021, @message, 1;
    end;
    if @after > @last
    begin
        set @message = concat(N'changefeed: cursor ', @after, N' is ahead of the shard, whose last number is ', @last,
            N'; it comes from another feed or database, or this database was restored from a backup');
        throw 55022, @message, 1;
    end;
    -- A backfill has begun since we asked: the page may have some of its numbers, but not all.
    if @from < @start and @begun < (select count(*) from changefeed.backfill b where b.feed_id = @feed_id)
        delete from @page where change_sequence_number > @start;
    if @from < @start set @from = @start;
    if @from < @trimmed set @from = @trimmed;
    select @gap = min(p.change_sequence_number) from @page p
    where p.change_sequence_number > @from + 1
      and not exists (select 1 from @page b where b.change_sequence_number = p.change_sequence_number - 1);
    select p.change_sequence_number, p.change_id, p.op, p.[key], p.[old], p.[new] from @page p
    where @gap is null or p.change_sequence_number < @gap
    order by p.change_sequence_number;
end;
GO

-- Returns when the shard has numbers beyond @change_sequence_number, or when the time is over;
-- read to find out which. To be called inside a transaction, which owns the waiting lock. While a
-- sweep_loop runs, it wakes us. Where none does (the changefeed program may be sweeping instead),
-- the lock is free and we look again every few milliseconds. Our place in the queue may be taken
-- just after a wake-up, so no wait is longer than a second; a client that cannot live with that
-- uses longpoll_guard.
create procedure changefeed.longpoll
    @feed_id smallint, @shard smallint, @change_sequence_number bigint, @timeout_milliseconds int
as
begin
    set nocount on;
    declare @name nvarchar(255) = concat(N'changefeed.longpoll/', @feed_id, N'/', @shard);
    declare @deadline datetime2(3) = dateadd(millisecond, @timeout_milliseconds, sysutcdatetime());
    declare @left int, @result int, @last bigint;
    --@babelfish declare @nap int;
    -- With implicit transactions it begins when a table is touched, and not before.
    if @@trancount = 0
        select @last = s.last_change_sequence_number from changefeed.shard s with (readuncommitted)
        where s.feed_id = @feed_id and s.shard = @shard;
    if @@trancount = 0
        throw 55012, 'changefeed: longpoll must be called inside a transaction', 1;
    while 1 = 1
    begin
        -- Uncommitted, because a snapshot transaction would see the same old number for ever; the
        -- caller reads again, so a number that is taken back does no harm.
        set @last = null;
        select @last = s.last_change_sequence_number from changefeed.shard s with (readuncommitted)
        where s.feed_id = @feed_id and s.shard = @shard;
        if @last is null throw 55013, 'changefeed: there is no such feed or shard', 1;
        if @last > @change_sequence_number return;
        set @left = datediff(millisecond, sysutcdatetime(), @deadline);
        if @left <= 0 return;
        if @left > 1000 set @left = 1000;
        --@babelfish select @nap = count(*) from (select pg_sleep(case when @left < 20 then @left else 20 end / 1000.0) as slept) naps;
        exec @result = sp_getapplock @Resource = @name, @LockMode = 'Shared', --@sqlserver
            @LockOwner = 'Transaction', @LockTimeout = @left; --@sqlserver
        if @result in (0, 1) exec sp_releaseapplock @Resource = @name, @LockOwner = 'Transaction'; --@sqlserver
        if @result = 0 waitfor delay '00:00:00.020'; --@sqlserver
        if @result < -1 throw 55010, 'changefeed: waiting was cut off', 1; --@sqlserver
    end;
end;
GO

-- Tells a client whether its call of longpoll, made in the given transaction on another
-- connection, is really waiting: whoever reads after that cannot miss a wake-up. Needs VIEW SERVER
-- STATE; nothing else of ours does.
create procedure changefeed.longpoll_guard @transaction_id bigint, @blocked bit output as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    set @blocked = 0;
    declare @turn int = 0; --@sqlserver
    while @turn < 100 and @blocked = 0 --@sqlserver
    begin --@sqlserver
        if exists (select 1 from sys.dm_tran_locks l --@sqlserver
                   where l.resource_type = 'APPLICATION' and l.request_status = 'WAIT' --@sqlserver
                     and l.request_owner_type = 'TRANSACTION' --@sqlserver
                     and l.request_owner_id = @transaction_id) --@sqlserver
            set @blocked = 1; --@sqlserver
        else --@sqlserver
            waitfor delay '00:00:00.010'; --@sqlserver
        set @turn = @turn + 1; --@sqlserver
    end; --@sqlserver
end;
GO

-- Rows behind captured changes ------------------------------------------------------------------

-- What happened (I insert, U update, D delete, B backfill), and the primary key of the row that a captured
-- change is about: a JSON array of texts, in key order. Text is the one form that every type can be written to
-- and read back from. Feeds with images also keep the row before and after.
-- The feed is part of it, because whoever may publish can enter any change_id into any feed: one of
-- another feed means nothing there.
create table changefeed.change_row (
    change_id bigint not null constraint pk_change_row primary key
        constraint df_change_row default next value for changefeed.change_id,
    feed_id   smallint not null,
    shard     smallint not null,
    op        char(1) not null,
    [key]     nvarchar(max) not null,
    [old]     nvarchar(max) null,
    [new]     nvarchar(max) null
);
-- Whoever writes many rows in one statement must not lock the rows of all others.
alter table changefeed.change_row set (lock_escalation = disable); --@sqlserver
GO

exec changefeed.recover;
GO

-- What an operation is called.
create view changefeed.op_name as
select v.op, v.name
from (values ('I', 'insert'), ('U', 'update'), ('D', 'delete'), ('B', 'backfill')) v (op, name);
GO

-- Who may read a feed by SQL, besides those who may read changefeed.change itself: see grant_read.
create table changefeed.feed_reader (
    feed_id smallint not null
        constraint fk_feed_reader_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    reader  nvarchar(128) not null,
    constraint pk_feed_reader primary key (feed_id, reader)
);
GO

-- The feeds that the caller may read. Views and procedures of ours reach our tables with our rights, and ask who the
-- caller is.
create view changefeed.feed_access as
select f.feed_id, f.name
from changefeed.feed f
where has_perms_by_name(N'changefeed.change', N'OBJECT', N'SELECT') = 1
   or exists (select 1 from changefeed.feed_reader r
              where r.feed_id = f.feed_id and (r.reader = user_name() or is_member(r.reader) = 1));
GO

-- Every change that has its number, of the feeds that the caller may read: for joins and reports. It checks no
-- cursor: who pages through it jumps over what was trimmed, over what a backfill is still to put in between, and, where the
-- database does not version rows, over what got its number during the scan; changefeed.[read] does not.
create view changefeed.change_log as
select c.feed_id, c.shard, c.change_sequence_number, c.change_id, o.name as op, r.[key], r.[old], r.[new]
from changefeed.feed_access a
join changefeed.change c on c.feed_id = a.feed_id
left join changefeed.change_row r on r.change_id = c.change_id and r.feed_id = c.feed_id
left join changefeed.op_name o on o.op = r.op
where c.change_sequence_number is not null;
GO

-- Lets a user or a role read a feed by SQL: its numbers, keys and images, which no policy and no grant of the table
-- applies to. For whoever may grant rights on the schema.
create procedure changefeed.grant_read @feed varchar(100), @reader nvarchar(128)
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @feed_id smallint = (select f.feed_id from changefeed.feed f where f.name = @feed);
    declare @grant nvarchar(max) = concat(
        N'grant execute on changefeed.[read] to ', quotename(@reader), N'; ',
        N'grant select on changefeed.change_log to ', quotename(@reader), N'; ',
        N'grant select on changefeed.feed to ', quotename(@reader), N'; ',
        N'grant select on changefeed.incarnation to ', quotename(@reader), N'; ',
        N'grant select on changefeed.shard to ', quotename(@reader));
    if @feed_id is null
        throw 55013, 'changefeed: there is no such feed or shard', 1;
    exec sys.sp_executesql @grant;
    insert into changefeed.feed_reader (feed_id, reader)
    select @feed_id, @reader
    where not exists (select 1 from changefeed.feed_reader r where r.feed_id = @feed_id and r.reader = @reader);
end;
GO

create procedure changefeed.revoke_read @feed varchar(100), @reader nvarchar(128)
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    delete r from changefeed.feed_reader r
    join changefeed.feed f on f.feed_id = r.feed_id
    where f.name = @feed and r.reader = @reader;
end;
GO
