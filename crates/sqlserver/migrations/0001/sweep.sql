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
        select @last = t.last, @swept = t.swept from @state t; --@sqlserver
        -- Babelfish may put the row from before the wait into OUTPUT; a statement of its own sees the newest.
        --@babelfish select @last = s.last_change_sequence_number, @swept = s.last_sweep_time
        --@babelfish from changefeed.shard s where s.feed_id = @feed_id and s.shard = @shard;
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
