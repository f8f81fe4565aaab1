-- changefeed 1: feeds on SQL Server 2017 and later, Azure SQL, and Babelfish for PostgreSQL.
-- Older programs: there are none.
--
-- What users see: feed, shard, change, consumer, the sequence change_id, sweep, sweep_loop,
-- longpoll and longpoll_guard. Everything else is how it works and may change.
--
-- How a change gets its number:
--   1. A writer inserts (feed_id, shard, change_id) into `change`, in its own transaction.
--   2. A sweep locks the row of the shard, and only then, in a statement of its own, collects the
--      changes that are committed and have no number; it numbers them in order of change_id, and
--      the numbers commit together with the new end of the shard.
--   3. The collecting must see one moment: a scan that passes an uncommitted change A and then
--      meets B, which began after A was committed, would give B the smaller number. With
--      READ_COMMITTED_SNAPSHOT a statement sees one moment. Without it, but with
--      ALLOW_SNAPSHOT_ISOLATION, the end of the shard and its changes are read in one snapshot, before the
--      lock; if the end is still the same under the lock, nobody has swept in between. With neither, a bound is
--      drawn from the sequence before the scan, and only ids below it are taken: whoever drew such an id had
--      begun by then, so what was committed before it began is there to be seen. Ids of one's own above the
--      sequence are never numbered then; doctor says so.
--
-- A procedure that has a transaction of its own, or none, must not inherit the caller's: drivers that turn off
-- auto-commit send SET IMPLICIT_TRANSACTIONS ON, and then the first statement that touches a table begins a transaction
-- that nobody ends, and BEGIN TRANSACTION begins two. So it begins with switching that off, and a limit of rows
-- with it; both are the caller's again when it returns.
--
-- A lock hint never carries correctness alone: rows are claimed by a conditional update, and what
-- was claimed is counted.
--
-- A line that ends in --@sqlserver is for SQL Server alone; a comment that begins with @babelfish
-- takes its place there. GO ends a batch.

create schema changefeed;
GO

create table changefeed.schema_version (
    version      int not null constraint pk_schema_version primary key,
    -- Of the text of the migration: one that was changed afterwards is noticed.
    checksum     varchar(16) not null,
    installed_at datetime2(3) not null constraint df_schema_version default sysutcdatetime()
);
GO

-- The lives of this database, the last of which counts: it began here, or with a recovery from a backup. Cursors
-- belong to one. Milliseconds since 1970 and chance, in hexadecimal digits.
create table changefeed.incarnation (
    number      int not null constraint pk_incarnation primary key,
    incarnation char(32) not null
);
GO

-- Begins another life: to be called after the database was restored from a backup. Readers who say which life
-- their cursor belongs to are refused then, instead of missing what is lost.
create procedure changefeed.recover
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @now binary(8) = convert(binary(8), datediff_big(millisecond, '1970-01-01', sysutcdatetime()));
    insert into changefeed.incarnation (number, incarnation)
    select isnull(max(i.number), 0) + 1,
           lower(concat(substring(changefeed.hex(@now), 7, 12),
                        substring(replace(convert(char(36), newid()), '-', ''), 1, 20)))
    from changefeed.incarnation i with (tablockx);
    select top (1) i.incarnation from changefeed.incarnation i order by i.number desc;
end;
GO

-- Feeds and shards ------------------------------------------------------------------------------

create table changefeed.feed (
    feed_id smallint not null constraint pk_feed primary key,
    name    varchar(100) not null constraint uq_feed_name unique,
    comment nvarchar(max) null,
    -- How long its changes are kept after they got their numbers, in milliseconds: those that every consumer has
    -- read, and those that some consumer has not read. For ever where it is null.
    trim_after_ms        bigint null constraint ck_feed_trim_after check (trim_after_ms >= 0),
    trim_unread_after_ms bigint null,
    constraint ck_feed_trim_unread_after check (trim_unread_after_ms >= trim_after_ms),
    constraint ck_feed_name check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0)
);
GO

-- The primary key is not the clustered index, and that matters: inserting a change checks its
-- shard by the primary key and locks an entry of that index, while a sweep locks the row itself.
-- So a writer in a long serializable transaction does not keep the shard from being swept.
-- Babelfish mistakes the schema of a table when it checks a foreign key in a session that has called
-- a procedure, and an insert of the application fails. So there are no foreign keys there: triggers refuse
-- what has no shard, and remove what belongs to a shard or a feed that goes.
create table changefeed.shard (
    feed_id                     smallint not null
        constraint fk_shard_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    shard                       smallint not null,
    sweep_group                 smallint not null constraint df_shard_group default 0,
    longpoll                    bit not null constraint df_shard_longpoll default 1,
    last_change_sequence_number bigint not null
        constraint df_shard_last default 2000000000000000
        constraint ck_shard_last check (last_change_sequence_number >= 0),
    last_sweep_time             datetime2(6) not null constraint df_shard_time default sysutcdatetime(),
    -- The number before the first live one, from the first sweep on; everything up to it is for
    -- data older than the feed.
    start                       bigint null,
    -- The highest number that trimming has removed, and that backfilling has given.
    trimmed_to                  bigint not null constraint df_shard_trimmed default 0,
    backfilled_to               bigint null,
    -- How often the number of shards had been changed when this one was made, and whether it was changed again: then
    -- nothing is added to this one. What was added before may still wait for its number.
    generation                  smallint not null constraint df_shard_generation default 0,
    closed                      bit not null constraint df_shard_closed default 0,
    constraint pk_shard primary key nonclustered (feed_id, shard)
);
create unique clustered index ix_sweep_group on changefeed.shard (sweep_group, feed_id, shard);
GO

-- When which numbers were given, about one row a second: the age of a number.
create table changefeed.progress (
    feed_id                     smallint not null,
    shard                       smallint not null,
    last_change_sequence_number bigint not null,
    swept_at                    datetime2(6) not null,
    constraint pk_progress primary key (feed_id, shard, last_change_sequence_number)
    , constraint fk_progress_shard foreign key (feed_id, shard) --@sqlserver
        references changefeed.shard (feed_id, shard) on delete cascade --@sqlserver
);
GO

-- Where the rows behind a feed's changes are.
create table changefeed.feed_source (
    feed_id          smallint not null constraint pk_feed_source primary key
        constraint fk_feed_source_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    kind             varchar(10) not null,
    table_id         int null,
    change_id_column nvarchar(128) null,
    shard_by         nvarchar(128) null,
    -- The shards that the rows of a captured table are spread over, from first_shard on.
    shards           smallint not null,
    first_shard      smallint not null constraint df_feed_source_first default 0,
    -- Whether its changes keep the row before and after.
    images           bit not null constraint df_feed_source_images default 0,
    -- Which rows are in it, as the condition was written, and which columns are in its images, as a JSON array.
    condition        nvarchar(max) null,
    columns          nvarchar(max) null,
    -- The columns of a captured table that its rows are known by, as column numbers with commas: its primary key
    -- when the feed was made.
    key_columns      varchar(200) null,
    ulid_feed        uniqueidentifier null,
    shard_column     nvarchar(128) null,
    ulid_column      nvarchar(128) null
);
GO

-- Changes ---------------------------------------------------------------------------------------

create sequence changefeed.change_id as bigint start with 1000000000000000 increment by 1
    cache 1000; --@sqlserver
    --@babelfish cache 1;
GO

create table changefeed.change (
    feed_id                smallint not null,
    shard                  smallint not null,
    change_id              bigint not null,
    change_sequence_number bigint null,
    constraint pk_change primary key (feed_id, shard, change_id)
        with (data_compression = page) --@sqlserver
    -- This name is what somebody reads whose insert is refused.
    , constraint [changefeed: this feed has no such shard] foreign key (feed_id, shard) --@sqlserver
        references changefeed.shard (feed_id, shard) on delete cascade --@sqlserver
);
alter table changefeed.change set (lock_escalation = disable); --@sqlserver
-- With the column that it is filtered by: SQL Server looks at it again, and would go to the row for it.
-- No page locks: a sweep passes by what is locked, and would pass by every change of a page that
-- somebody reorganizes, also by those that are committed.
create unique index ix_needs_seqnum on changefeed.change (feed_id, shard, change_id)
    include (change_sequence_number)
    where change_sequence_number is null
    with (allow_page_locks = off) --@sqlserver
    ;
create unique index ix_seqnum on changefeed.change (feed_id, shard, change_sequence_number)
    include (change_id)
    where change_sequence_number is not null;
GO

create table changefeed.backfill (
    feed_id     smallint not null constraint pk_backfill primary key
        constraint fk_backfill_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    -- The primary key of the last row done, as a JSON array of texts.
    last_key    nvarchar(max) null,
    done        bigint not null constraint df_backfill_done default 0,
    total       bigint not null,
    finished_at datetime2(3) null
);
GO

-- A number given by hand is for data older than the feed. One that the sweep will want to give
-- itself must not be taken.
create trigger changefeed.change_insert on changefeed.change after insert as
begin
    --@babelfish if exists (select 1 from inserted i where not exists (select 1 from changefeed.shard s where s.feed_id = i.feed_id and s.shard = i.shard))
    --@babelfish     throw 55303, 'changefeed: this feed has no such shard', 1;
    if not exists (select 1 from inserted where change_sequence_number is not null) return;
    set nocount on;
    -- A backfill has marked out its numbers before it gives them.
    if exists (select 1 from inserted i
               join changefeed.backfill b on b.feed_id = i.feed_id
               join changefeed.shard s on s.feed_id = i.feed_id and s.shard = i.shard
               where b.finished_at is null
                 and i.change_sequence_number > isnull(s.backfilled_to, 0))
        throw 55301, 'changefeed: a backfill of this feed is at work; insert old data before it or after it', 1;
    if exists (select 1 from inserted i
               join changefeed.shard s on s.feed_id = i.feed_id and s.shard = i.shard
               where i.change_sequence_number > isnull(s.start, s.last_change_sequence_number)
                  or i.change_sequence_number <= s.trimmed_to)
        throw 55302, 'changefeed: numbers given by hand must be above what was trimmed and not above the start of the shard; leave the number out for a live change', 1;
end;
GO

-- Sweeping --------------------------------------------------------------------------------------

-- Numbers what is committed in one shard, in a transaction of its own unless the caller has one.
create procedure changefeed.sweep_shard
    @feed_id          smallint,
    @shard            smallint,
    @change_count     bigint output,
    @lag_milliseconds bigint output
as
begin
    set nocount on;
    set xact_abort on;
    set transaction isolation level read committed;
    -- More than this is left for the next sweep, so that no shard waits long for another.
    declare @batch int = 20000;
    declare @last bigint, @swept datetime2(6), @now datetime2(6), @bound bigint = 9223372036854775807;
    declare @versioned bit = 1, @snapshots bit = 0, @seen bigint;
    declare @mark datetime2(6);
    declare @state table (last bigint not null, swept datetime2(6) not null);
    declare @pending table (change_id bigint not null primary key, number bigint not null);
    set @change_count = 0;
    set @lag_milliseconds = 0;
    -- The caller's transaction cannot become one with a snapshot. --@sqlserver
    select @versioned = d.is_read_committed_snapshot_on, --@sqlserver
           @snapshots = case when d.is_read_committed_snapshot_on = 0 and d.snapshot_isolation_state = 1 --@sqlserver
                              and @@trancount = 0 then 1 else 0 end --@sqlserver
    from sys.databases d where d.name = db_name(); --@sqlserver
    if @versioned = 0 and @snapshots = 0 set @bound = next value for changefeed.change_id;

    while 1 = 1
    begin
        delete from @state;
        if @snapshots = 1 --@sqlserver
        begin --@sqlserver
            delete from @pending; --@sqlserver
            set transaction isolation level snapshot; --@sqlserver
            begin transaction; --@sqlserver
            select @seen = s.last_change_sequence_number --@sqlserver
            from changefeed.shard s where s.feed_id = @feed_id and s.shard = @shard; --@sqlserver
            insert into @pending (change_id, number) --@sqlserver
            select top (@batch) c.change_id, row_number() over (order by c.change_id) --@sqlserver
            from changefeed.change c --@sqlserver
            where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null --@sqlserver
            order by c.change_id; --@sqlserver
            commit transaction; --@sqlserver
            set transaction isolation level read committed; --@sqlserver
        end; --@sqlserver
        begin transaction;
        -- Whoever else sweeps this shard waits here. An update, because Babelfish takes no lock for a hint;
        -- and a hint, because with optimized locking SQL Server need not keep the lock of a row that an
        -- update left as it was. Not XLOCK: writers look at the shard's entry in the primary key.
        -- FORCESEEK here and below: a scan of so small a table would lock every shard's row for a
        -- moment, and wait for whoever is at work on one, who may wait for us in the same way.
        update changefeed.shard with (updlock, forceseek) set last_sweep_time = last_sweep_time
        output inserted.last_change_sequence_number, inserted.last_sweep_time into @state (last, swept)
        where feed_id = @feed_id and shard = @shard;
        set @last = null;
        select @last = t.last, @swept = t.swept from @state t;
        if @last is null
        begin
            commit transaction;
            return;
        end;
        if @snapshots = 0 or @last = @seen break;
        -- Somebody else has swept since the snapshot.
        commit transaction;
    end;

    -- Only now, with the lock held, in a statement of its own: see the top of this file.
    if @versioned = 1
        insert into @pending (change_id, number)
        select top (@batch) c.change_id, row_number() over (order by c.change_id)
        from changefeed.change c
        where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null
        order by c.change_id;
    else if @snapshots = 0
        insert into @pending (change_id, number)
        select top (@batch) c.change_id, row_number() over (order by c.change_id)
        from changefeed.change c with (readcommittedlock, readpast, index (ix_needs_seqnum)) --@sqlserver
        --@babelfish from changefeed.change c with (readcommittedlock, readpast)
        where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null
          and c.change_id < @bound
        order by c.change_id;
    select @change_count = count(*) from @pending;
    if @change_count = 0
    begin
        commit transaction;
        return;
    end;

    -- Row by row, by the whole key: a join that reads the whole shard would wait for writers.
    update c set change_sequence_number = @last + p.number
    from @pending p
    join changefeed.change c with (forceseek) on c.change_id = p.change_id
    where c.feed_id = @feed_id and c.shard = @shard and c.change_sequence_number is null
    option (loop join, force order) --@sqlserver
    ;
    if @@rowcount <> @change_count
        throw 55202, 'changefeed: changes were numbered or removed by somebody else during a sweep; nothing was done', 1;

    set @now = sysutcdatetime();
    update s
    set last_change_sequence_number = @last + @change_count, last_sweep_time = @now,
        start = isnull(s.start, @last)
    from changefeed.shard s with (forceseek)
    where s.feed_id = @feed_id and s.shard = @shard and s.last_change_sequence_number = @last;
    if @@rowcount <> 1
        throw 55201, 'changefeed: the end of a shard was changed by somebody else during a sweep; nothing was done', 1;

    -- Keep about one row a second: the newest is moved on while the one before it is young.
    select @mark = min(m.swept_at)
    from (select top (2) p.swept_at from changefeed.progress p
          where p.feed_id = @feed_id and p.shard = @shard
          order by p.last_change_sequence_number desc) m
    having count(*) = 2;
    if @mark > dateadd(second, -1, @now)
        update changefeed.progress
        set last_change_sequence_number = @last + @change_count, swept_at = @now
        where feed_id = @feed_id and shard = @shard and last_change_sequence_number = @last;
    if @mark is null or @mark <= dateadd(second, -1, @now) or @@rowcount = 0
        insert into changefeed.progress (feed_id, shard, last_change_sequence_number, swept_at)
        values (@feed_id, @shard, @last + @change_count, @now);
    commit transaction;
    -- A ceiling: the time since the shard last got numbers.
    set @lag_milliseconds = datediff_big(millisecond, @swept, @now);
end;
GO

-- The shards of a group that have changes without a number, committed or not. Reading them
-- uncommitted takes no lock and waits for nobody: what is there is looked at properly later.
-- It goes from one such shard to the next in the index of changes without a number, so that a
-- sweep costs what has changed, and not how many shards there are.
create function changefeed.shards_to_sweep (@sweep_group smallint)
returns @found table (feed_id smallint not null, shard smallint not null, primary key (feed_id, shard)) as
begin
    declare @feed_id smallint = -32768, @shard smallint = -32768, @next_shard smallint;
    while 1 = 1
    begin
        set @next_shard = null;
        select top (1) @next_shard = c.shard
        from changefeed.change c with (readuncommitted, forceseek)
        where c.feed_id = @feed_id and c.shard > @shard and c.change_sequence_number is null
        order by c.shard;
        if @next_shard is null
            select top (1) @feed_id = c.feed_id, @next_shard = c.shard
            from changefeed.change c with (readuncommitted, forceseek)
            where c.feed_id > @feed_id and c.change_sequence_number is null
            order by c.feed_id, c.shard;
        if @next_shard is null break;
        set @shard = @next_shard;
        insert into @found (feed_id, shard)
        select s.feed_id, s.shard from changefeed.shard s with (readuncommitted)
        where s.feed_id = @feed_id and s.shard = @shard and s.sweep_group = @sweep_group;
    end;
    return;
end;
GO

-- Numbers what is committed in a group, once. Any number of sweeps may run at the same time.
create procedure changefeed.sweep @sweep_group smallint = 0 as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    -- Not an identity: @@identity belongs to the caller.
    declare @work table (place int not null primary key, feed_id smallint, shard smallint,
                         change_count bigint, lag_milliseconds bigint);
    declare @place int = 1, @count int, @total bigint = 0, @began datetime2(6) = sysutcdatetime();
    declare @feed_id smallint, @shard smallint, @change_count bigint, @lag_milliseconds bigint;
    -- By chance, so that no shard is always the one that is left over.
    insert into @work (place, feed_id, shard)
    select row_number() over (order by newid()), t.feed_id, t.shard
    from changefeed.shards_to_sweep(isnull(@sweep_group, 0)) t;
    set @count = @@rowcount;
    -- What takes longer is left for the next sweep.
    while @place <= @count and @total < 100000
          and (@total = 0 or datediff_big(millisecond, @began, sysutcdatetime()) between -1000 and 1000)
    begin
        select @feed_id = w.feed_id, @shard = w.shard from @work w where w.place = @place;
        exec changefeed.sweep_shard @feed_id, @shard, @change_count output, @lag_milliseconds output;
        update @work set change_count = @change_count, lag_milliseconds = @lag_milliseconds
        where place = @place;
        set @place = @place + 1;
        set @total = @total + @change_count;
    end;
    select w.feed_id, w.shard, w.change_count, w.lag_milliseconds
    from @work w where w.change_count > 0
    order by w.place;
end;
GO

-- Leases ----------------------------------------------------------------------------------------

create table changefeed.lease (
    name       nvarchar(200) not null constraint pk_lease primary key,
    owner      nvarchar(200) not null,
    generation bigint not null,
    -- Grows whenever the lease is granted or renewed.
    renewal    bigint not null constraint df_lease_renewal default 1,
    ttl_milliseconds int not null,
    expires_at datetime2(6) not null
);
GO

-- Takes a lease that is free or expired, or renews it for the same owner; no generation while
-- somebody else holds it. The clock is the server's, read before the row is waited for: a lease
-- may be granted for less time than was asked, never for more. It may have been set back, and then
-- a dead owner's lease would seem to last: whoever has seen one and the same renewal for longer
-- than its time, by a clock of their own, says which in @stale_renewal, and takes that.
create procedure changefeed.take_lease
    @name nvarchar(200), @owner nvarchar(200), @ttl_milliseconds int, @stale_renewal bigint,
    @generation bigint output, @renewal bigint output, @held_for int output
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @now datetime2(6) = sysutcdatetime();
    declare @expires datetime2(6) = dateadd(millisecond, @ttl_milliseconds, @now);
    select @generation = null, @renewal = null, @held_for = null;
    if not exists (select 1 from changefeed.lease where name = @name)
    begin try
        insert into changefeed.lease (name, owner, generation, ttl_milliseconds, expires_at)
        values (@name, @owner, 1, @ttl_milliseconds, @expires);
        set @generation = 1;
        return;
    end try
    begin catch
        -- Somebody was faster; any other reason shows below.
        set @generation = null;
    end catch;
    update changefeed.lease
    set generation = case when owner = @owner and expires_at > @now then generation
                          else generation + 1 end,
        owner = @owner, renewal = renewal + 1, ttl_milliseconds = @ttl_milliseconds,
        -- A call that is executed late, after a newer one of the same owner, must not shorten what
        -- that one was granted and its owner trusts. What lies further ahead than a lease can last
        -- is from before the clock was set back.
        expires_at = case when owner = @owner and expires_at > @expires
                               and expires_at <= dateadd(millisecond, @ttl_milliseconds, sysutcdatetime())
                          then expires_at else @expires end
    where name = @name and (owner = @owner or expires_at <= @now or renewal = @stale_renewal);
    if @@rowcount = 1
        select @generation = l.generation from changefeed.lease l
        where l.name = @name and l.owner = @owner and l.expires_at = @expires;
    else
        select @renewal = l.renewal, @held_for = l.ttl_milliseconds from changefeed.lease l
        where l.name = @name;
end;
GO

-- Sweeping and waiting by SQL alone -------------------------------------------------------------

-- Sweeps until the duration has passed. Of any number of callers one works per group; the others
-- wait to take over, and return with zeros if they could not within @wait_milliseconds. Readers
-- who wait in changefeed.longpoll hold a shared lock's place in the queue behind our exclusive
-- one: giving it up and taking it again wakes them, and that is done for every shard that got
-- numbers, from whomever.
create procedure changefeed.sweep_loop
    @sweep_group           smallint = 0,
    @wait_milliseconds     int = 30000,
    @duration_milliseconds int = 50000,
    @sleep_milliseconds    int = 20,
    @change_count          bigint = null output,
    @max_lag_milliseconds  bigint = null output,
    @iterations            bigint = null output
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @work table (feed_id smallint not null, shard smallint not null,
                         primary key (feed_id, shard));
    declare @held table (feed_id smallint not null, shard smallint not null,
                         told bigint not null, primary key (feed_id, shard));
    declare @due table (feed_id smallint not null, shard smallint not null, --@sqlserver
                        last bigint not null, primary key (feed_id, shard)); --@sqlserver
    declare @strange table (feed_id smallint not null, shard smallint not null, --@sqlserver
                            primary key (feed_id, shard)); --@sqlserver
    declare @patience int; --@sqlserver
    declare @name nvarchar(255), @lock nvarchar(255) = concat(N'changefeed.sweep_loop/', @sweep_group
        --@babelfish , N'/', db_id()
    );
    declare @result int, @deadline datetime2(3), @delay datetime = dateadd(millisecond, isnull(@sleep_milliseconds, 20), 0);
    declare @feed_id smallint, @shard smallint, @last bigint, @found bigint, @lag bigint;
    --@babelfish declare @nap int;
    set @change_count = 0;
    set @max_lag_milliseconds = 0;
    set @iterations = 0;
    if @sweep_group is null or @wait_milliseconds < 0 or @duration_milliseconds < 0
       or @sleep_milliseconds < 0
        throw 55003, 'changefeed: sweep_loop needs a sweep group, and no time may be negative', 1;
    if @@trancount > 0
        throw 55005, 'changefeed: sweep_loop must not be called inside a transaction: nobody would see the numbers before it ends', 1;
    -- A call that its client has cut off leaves its locks with the session.
    while applock_mode(N'public', @lock, N'Session') <> N'NoLock' --@sqlserver
        exec sp_releaseapplock @Resource = @lock, @LockOwner = 'Session'; --@sqlserver
    exec @result = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive',
        @LockOwner = 'Session', @LockTimeout = @wait_milliseconds;
    if @result < 0 return;
    begin try
        set @deadline = dateadd(millisecond, isnull(@duration_milliseconds, 50000), sysutcdatetime());
        while 1 = 1
        begin
            delete from @work;
            insert into @work (feed_id, shard)
            select t.feed_id, t.shard from changefeed.shards_to_sweep(@sweep_group) t;
            set @feed_id = null;
            select top (1) @feed_id = w.feed_id, @shard = w.shard from @work w order by w.feed_id, w.shard;
            while @feed_id is not null
            begin
                exec changefeed.sweep_shard @feed_id, @shard, @found output, @lag output;
                set @change_count = @change_count + @found;
                if @lag > @max_lag_milliseconds set @max_lag_milliseconds = @lag;
                delete from @work where feed_id = @feed_id and shard = @shard;
                set @feed_id = null;
                select top (1) @feed_id = w.feed_id, @shard = w.shard from @work w order by w.feed_id, w.shard;
            end;
            -- Shards without our lock, and shards that got numbers since their waiters were told.
            insert into @due (feed_id, shard, last) --@sqlserver
            select s.feed_id, s.shard, s.last_change_sequence_number --@sqlserver
            from changefeed.shard s left join @held h on h.feed_id = s.feed_id and h.shard = s.shard --@sqlserver
            where s.sweep_group = @sweep_group and s.longpoll = 1 --@sqlserver
              and (h.told is null or h.told <> s.last_change_sequence_number); --@sqlserver
            while exists (select 1 from @due) --@sqlserver
            begin --@sqlserver
                select top (1) @feed_id = d.feed_id, @shard = d.shard, @last = d.last from @due d; --@sqlserver
                delete from @due where feed_id = @feed_id and shard = @shard; --@sqlserver
                set @name = concat(N'changefeed.longpoll/', @feed_id, N'/', @shard); --@sqlserver
                -- Also what a call that was cut off has left. --@sqlserver
                while applock_mode(N'public', @name, N'Session') <> N'NoLock' --@sqlserver
                    exec sp_releaseapplock @Resource = @name, @LockOwner = 'Session'; --@sqlserver
                delete from @held where feed_id = @feed_id and shard = @shard; --@sqlserver
                -- A stranger may keep it, a client for example that was cut off while it waited and has not ended its
                -- transaction. Waiters of that shard then look by themselves, and those of the others do not
                -- suffer: we are patient once, and from then on try in passing.
                set @patience = 1000; --@sqlserver
                if exists (select 1 from @strange t where t.feed_id = @feed_id and t.shard = @shard) set @patience = 0; --@sqlserver
                exec @result = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', --@sqlserver
                    @LockOwner = 'Session', @LockTimeout = @patience; --@sqlserver
                if @result >= 0 --@sqlserver
                begin --@sqlserver
                    insert into @held (feed_id, shard, told) values (@feed_id, @shard, @last); --@sqlserver
                    delete from @strange where feed_id = @feed_id and shard = @shard; --@sqlserver
                end --@sqlserver
                else if @patience > 0 --@sqlserver
                    insert into @strange (feed_id, shard) values (@feed_id, @shard); --@sqlserver
            end; --@sqlserver
            set @iterations = @iterations + 1;
            if sysutcdatetime() >= @deadline break;
            waitfor delay @delay; --@sqlserver
            --@babelfish select @nap = count(*) from (select pg_sleep(isnull(@sleep_milliseconds, 20) / 1000.0) as slept) naps;
        end;
    end try
    begin catch
        -- Somebody else must be able to take over even if our caller keeps the connection. Locks
        -- that were never taken or are gone with a transaction are not released a second time.
        if xact_state() <> 0 rollback transaction;
        while exists (select 1 from @held) --@sqlserver
        begin --@sqlserver
            select top (1) @feed_id = h.feed_id, @shard = h.shard from @held h; --@sqlserver
            set @name = concat(N'changefeed.longpoll/', @feed_id, N'/', @shard); --@sqlserver
            exec sp_releaseapplock @Resource = @name, @LockOwner = 'Session'; --@sqlserver
            delete from @held where feed_id = @feed_id and shard = @shard; --@sqlserver
        end; --@sqlserver
        exec sp_releaseapplock @Resource = @lock, @LockOwner = 'Session';
        throw;
    end catch;
    while exists (select 1 from @held) --@sqlserver
    begin --@sqlserver
        select top (1) @feed_id = h.feed_id, @shard = h.shard from @held h; --@sqlserver
        set @name = concat(N'changefeed.longpoll/', @feed_id, N'/', @shard); --@sqlserver
        exec sp_releaseapplock @Resource = @name, @LockOwner = 'Session'; --@sqlserver
        delete from @held where feed_id = @feed_id and shard = @shard; --@sqlserver
    end; --@sqlserver
    exec sp_releaseapplock @Resource = @lock, @LockOwner = 'Session';
end;
GO

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

-- The bytes as text, 0x and two digits each: what style 1 of CONVERT does on SQL Server.
create function changefeed.hex (@value varbinary(max)) returns varchar(max) as
begin
    return convert(varchar(max), @value, 1); --@sqlserver
    --@babelfish if @value is null return null;
    --@babelfish declare @text varchar(max) = '0x', @place int = 1, @byte int;
    --@babelfish while @place <= datalength(@value)
    --@babelfish begin
    --@babelfish     set @byte = convert(int, substring(@value, @place, 1));
    --@babelfish     set @text = @text + substring('0123456789ABCDEF', @byte / 16 + 1, 1)
    --@babelfish                       + substring('0123456789ABCDEF', @byte % 16 + 1, 1);
    --@babelfish     set @place = @place + 1;
    --@babelfish end;
    --@babelfish return @text;
end;
GO

-- What STRING_ESCAPE and JSON_VALUE do on SQL Server. Babelfish escapes bytes instead of characters,
-- makes NULL of an empty text, and takes no escape back; a backslash that REPLACE puts in has to be
-- doubled there.
--@babelfish create function changefeed.json_escape (@text nvarchar(max), @kind nvarchar(20)) returns nvarchar(max) as
--@babelfish begin
--@babelfish     if @text is null return null;
--@babelfish     declare @code int = 1;
--@babelfish     set @text = replace(replace(@text, N'\', N'\\\\'), N'"', N'\"');
--@babelfish     set @text = replace(replace(replace(@text, nchar(9), N'\t'), nchar(10), N'\n'), nchar(13), N'\r');
--@babelfish     if regexp_count(@text collate Latin1_General_BIN2, N'[\x01-\x1f]' collate Latin1_General_BIN2) = 0 return @text;
--@babelfish     while @code < 32
--@babelfish     begin
--@babelfish         set @text = replace(@text, nchar(@code), N'\u00' + substring(N'01', @code / 16 + 1, 1) + substring(N'0123456789abcdef', @code % 16 + 1, 1));
--@babelfish         set @code = @code + 1;
--@babelfish     end;
--@babelfish     return @text;
--@babelfish end;
GO
--@babelfish create function changefeed.json_text (@json nvarchar(max), @path nvarchar(200)) returns nvarchar(max) as
--@babelfish begin
--@babelfish     declare @code int = 1, @text nvarchar(max) = json_value(@json, @path);
--@babelfish     set @text = replace(replace(@text, N'\\', nchar(1)), N'\"', N'"');
--@babelfish     set @text = replace(replace(replace(replace(@text, N'\t', nchar(9)), N'\n', nchar(10)), N'\r', nchar(13)), N'\/', N'/');
--@babelfish     while @code < 32
--@babelfish     begin
--@babelfish         if @code > 1 set @text = replace(@text, N'\u00' + substring(N'01', @code / 16 + 1, 1) + substring(N'0123456789abcdef', @code % 16 + 1, 1), nchar(@code));
--@babelfish         set @code = @code + 1;
--@babelfish     end;
--@babelfish     return replace(replace(@text, N'\u0001', nchar(2)), nchar(1), N'\\');
--@babelfish end;
GO

-- A trigger that publishes to a feed that is gone would fail the application's writes.
-- In the name of the owner: a trigger that whoever deletes may not see would be left behind.
create trigger changefeed.feed_delete on changefeed.feed
    with execute as owner --@sqlserver
    after delete as
begin
    set nocount on;
    --@babelfish delete s from changefeed.shard s join deleted d on d.feed_id = s.feed_id;
    --@babelfish delete s from changefeed.feed_source s join deleted d on d.feed_id = s.feed_id;
    --@babelfish delete b from changefeed.backfill b join deleted d on d.feed_id = b.feed_id;
    --@babelfish delete r from changefeed.feed_reader r join deleted d on d.feed_id = r.feed_id;
    delete p from changefeed.subscription_parked p
    join changefeed.subscription s on s.name = p.name join deleted d on d.feed_id = s.feed_id;
    delete p from changefeed.subscription_shard p
    join changefeed.subscription s on s.name = p.name join deleted d on d.feed_id = s.feed_id;
    delete s from changefeed.subscription s join deleted d on d.feed_id = s.feed_id;
    declare @drop nvarchar(max);
    while 1 = 1
    begin
        set @drop = null;
        select top (1) @drop = concat(N'drop trigger ', quotename(schema_name(o.schema_id)), N'.', quotename(t.name))
        from deleted d
        join sys.triggers t on t.name = concat(N'changefeed_', d.feed_id)
        join sys.objects o on o.object_id = t.object_id;
        if @drop is null break;
        exec sys.sp_executesql @drop;
    end;
end;
GO

-- The shard of a text; documented in docs/feeds.md, the same on every database: the formula is
-- over UTF-8, which SQL Server 2017 does not write by itself.
create function changefeed.shard_of (@value nvarchar(max), @shards int) returns smallint as
begin
    if @value is null return 0;
    declare @total bigint = 0, @byte int = 0, @place int = 1, @length int = len(@value + N'.') - 1;
    declare @code int, @low int, @count int, @part int;
    while @place <= @length and @byte < 255
    begin
        set @code = unicode(substring(@value, @place, 1));
        if @code between 55296 and 56319 and @place < @length
        begin
            set @low = unicode(substring(@value, @place + 1, 1));
            if @low between 56320 and 57343
            begin
                set @code = 65536 + (@code - 55296) * 1024 + (@low - 56320);
                set @place = @place + 1;
            end;
        end;
        set @count = case when @code < 128 then 1 when @code < 2048 then 2 when @code < 65536 then 3 else 4 end;
        set @part = 1;
        while @part <= @count and @byte < 255
        begin
            set @byte = @byte + 1;
            set @total = @total + convert(bigint,
                case when @count = 1 then @code
                     when @part = 1 and @count = 2 then 192 + @code / 64
                     when @part = 1 and @count = 3 then 224 + @code / 4096
                     when @part = 1 then 240 + @code / 262144
                     when @count - @part = 2 then 128 + (@code / 4096) % 64
                     when @count - @part = 1 then 128 + (@code / 64) % 64
                     else 128 + @code % 64 end)
                * ((convert(bigint, @byte) * @byte * 7919) % 65521);
            set @part = @part + 1;
        end;
        set @place = @place + 1;
    end;
    return convert(smallint, (((@total * 40503) % convert(bigint, 4294967296)) / 4096) % @shards);
end;
GO

-- Consumers -------------------------------------------------------------------------------------

create table changefeed.consumer (
    name       varchar(100) not null,
    feed_id    smallint not null,
    shard      smallint not null,
    -- Text, because other kinds of feeds have other kinds of cursors.
    [cursor]   varchar(26) not null,
    updated_at datetime2(3) not null constraint df_consumer_updated default sysutcdatetime(),
    constraint pk_consumer primary key (name, feed_id, shard),
    constraint ck_consumer_name check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0),
    constraint ck_consumer_cursor check ([cursor] <> '' and patindex('%[^0-9A-Z]%', [cursor] collate Latin1_General_BIN2) = 0)
    , constraint fk_consumer_shard foreign key (feed_id, shard) --@sqlserver
        references changefeed.shard (feed_id, shard) on delete cascade --@sqlserver
);
GO
--@babelfish create trigger changefeed.consumer_insert on changefeed.consumer after insert as
--@babelfish begin
--@babelfish     set nocount on;
--@babelfish     if exists (select 1 from inserted i where not exists (select 1 from changefeed.shard s where s.feed_id = i.feed_id and s.shard = i.shard))
--@babelfish         throw 55303, 'changefeed: this feed has no such shard', 1;
--@babelfish end;
GO
--@babelfish create trigger changefeed.shard_delete on changefeed.shard after delete as
--@babelfish begin
--@babelfish     set nocount on;
--@babelfish     delete c from changefeed.change c join deleted d on d.feed_id = c.feed_id and d.shard = c.shard;
--@babelfish     delete p from changefeed.progress p join deleted d on d.feed_id = p.feed_id and d.shard = p.shard;
--@babelfish     delete c from changefeed.consumer c join deleted d on d.feed_id = c.feed_id and d.shard = c.shard;
--@babelfish end;
GO

-- Subscriptions ---------------------------------------------------------------------------------

-- The changes of a feed are pushed to a sink. The position is the cursor of the consumer of the same name.
create table changefeed.subscription (
    name       varchar(100) not null constraint pk_subscription primary key,
    feed_id    smallint not null,
    -- What it pushes where, as JSON.
    definition nvarchar(max) not null,
    -- Why it is paused.
    paused     nvarchar(max) null,
    created_at datetime2(3) not null constraint df_subscription_created default sysutcdatetime(),
    constraint ck_subscription_name
        check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0)
);
GO

-- Where each of its shards stands. Whoever works on one holds the lease push/NAME/SHARD. No foreign keys: dropping a
-- feed or a subscription removes the rows in its transaction.
create table changefeed.subscription_shard (
    name       varchar(100) not null,
    shard      smallint not null,
    -- The lease's generation: an older one cannot move the position.
    generation bigint not null constraint df_subscription_shard_generation default 0,
    -- Raised when a person has it begin elsewhere; part of message ids.
    epoch      int not null constraint df_subscription_shard_epoch default 0,
    -- What the sink held of this epoch when the position was stored.
    held       varchar(26) null,
    -- Why it was stopped.
    stopped    nvarchar(max) null,
    sent       bigint not null constraint df_subscription_shard_sent default 0,
    lost       bigint not null constraint df_subscription_shard_lost default 0,
    parked     bigint not null constraint df_subscription_shard_parked default 0,
    constraint pk_subscription_shard primary key (name, shard)
);
GO

-- Changes that a sink refused and that were left out.
create table changefeed.subscription_parked (
    name       varchar(100) not null,
    shard      smallint not null,
    epoch      int not null,
    [cursor]   varchar(26) not null,
    reason     nvarchar(max) not null,
    parked_at  datetime2(3) not null constraint df_subscription_parked_at default sysutcdatetime(),
    constraint pk_subscription_parked primary key (name, shard, epoch, [cursor])
);
GO

-- Roles -----------------------------------------------------------------------------------------

create role changefeed_reader;
GO
create role changefeed_writer;
GO
create role changefeed_admin;
GO
grant select on changefeed.schema_version to changefeed_reader;
grant select on changefeed.incarnation to changefeed_reader;
grant select on changefeed.feed to changefeed_reader;
grant select on changefeed.feed_source to changefeed_reader;
grant select on changefeed.shard to changefeed_reader;
grant select on changefeed.progress to changefeed_reader;
grant select on changefeed.change to changefeed_reader;
grant select on changefeed.change_row to changefeed_reader;
grant select on changefeed.backfill to changefeed_reader;
grant select, insert, update, delete on changefeed.consumer to changefeed_reader;
grant execute on changefeed.[read] to changefeed_reader;
grant select on changefeed.change_log to changefeed_reader;
grant execute on changefeed.longpoll to changefeed_reader;
grant execute on changefeed.longpoll_guard to changefeed_reader;
-- What the program reads rows with. Babelfish has more of these.
grant execute on changefeed.hex to changefeed_reader;
--@babelfish grant execute on changefeed.json_escape to changefeed_reader;
--@babelfish grant execute on changefeed.json_text to changefeed_reader;
grant insert on changefeed.change to changefeed_writer;
grant update on changefeed.change_id to changefeed_writer;
-- Not ALTER: whoever may alter a procedure of ours can have it read whatever our owner may read.
grant select, insert, update, delete, execute, view definition on schema::changefeed to changefeed_admin; --@sqlserver
--@babelfish grant select, insert, update, delete, execute on schema::changefeed to changefeed_admin;
-- On SQL Server a trigger, a procedure or a view of ours needs no right of whoever uses it.
--@babelfish grant update on changefeed.change_id to changefeed_admin;
--@babelfish grant select on changefeed.shard to changefeed_writer;
--@babelfish grant select on changefeed.backfill to changefeed_writer;
GO
