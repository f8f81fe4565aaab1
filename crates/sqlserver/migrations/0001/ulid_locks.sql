-- changefeed: ULID transactions on SQL Server 2017 and later, Azure SQL, and Babelfish for PostgreSQL.
--
--   set xact_abort on;
--   begin transaction;
--   exec changefeed.begin_ulid_transaction @feed_id = '80270756-deeb-11ed-91f2-4f03a365d3f8', @shard_id = 0;
--   declare @ulid binary(16);
--   exec changefeed.new_ulid @ulid = @ulid output;
--   insert into event (shard, ulid, ...) values (0, @ulid, ...);
--   exec changefeed.commit_ulid_transaction;
--   commit transaction;
--
-- Writers of one (feed_id, shard_id) queue on an application lock, so that the ULIDs they write
-- are increasing for every observer. The lock can be *burned*: its name contains the number of
-- incidents of the shard, so when its holder has been silent for the timeout, somebody raises the
-- number, and everybody moves on to a new lock.
--
-- Correctness does not rest on that lock, nor on any hint. The rows of `incident` and `shard_ulid`
-- are locked only in the round trip that commits, by conditional updates: both must be what they
-- were at the beginning, and what was updated is counted; otherwise the transaction fails.
--
-- The lock belongs to the transaction, and so the server frees it however that ends: commit,
-- rollback, XACT_ABORT, a cut connection. Under snapshot isolation the snapshot would be older than
-- the lock: there the lock is taken for the session first, see lock_ulid_shard.
--
-- Every procedure of ours sets XACT_ABORT: an error of ours dooms the transaction, whatever the
-- caller's setting is and whoever swallows the error, so what failed here cannot be committed.
--
-- Errors have numbers of their own:
--   55601 incident detected: roll back, call report_incident outside of the transaction, try again
--   55602 busy: living writers held the shard for the whole wait
--   55603 burned: this transaction was judged dead, or found a newer state; it cannot commit
--   55604 misuse: the message says of what

create table changefeed.shard_ulid (
    feed_id   uniqueidentifier not null,
    shard_id  int not null,
    [time]    datetime2(3) not null,
    ulid_high binary(8) not null,
    ulid_low  bigint not null,
    constraint pk_shard_ulid primary key (feed_id, shard_id)
        with (allow_page_locks = off) --@sqlserver
);
create table changefeed.incident (
    feed_id     uniqueidentifier not null,
    shard_id    int not null,
    [count]     bigint not null constraint df_incident_count default 0,
    reported_at datetime2(3) null,
    constraint pk_incident primary key (feed_id, shard_id)
        with (allow_page_locks = off) --@sqlserver
);
-- How far ahead of the database's clock a time hint may be. A hint far in the future would keep its shard there: all
-- later ULIDs of the shard would tell that time.
create table changefeed.ulid_limit (
    only_row           bit not null constraint df_ulid_limit_row default 1
        constraint ck_ulid_limit_row check (only_row = 1),
    ahead_milliseconds bigint not null constraint df_ulid_limit_ahead default 60000
        constraint ck_ulid_limit_ahead check (ahead_milliseconds >= 0),
    constraint pk_ulid_limit primary key (only_row)
);
GO
insert into changefeed.ulid_limit (ahead_milliseconds) values (60000);
GO

-- Only differences between two values mean anything, so a cache does no harm.
create sequence changefeed.sequence as bigint start with -9223372036854775808 increment by 1 cache 100000; --@sqlserver
--@babelfish create sequence changefeed.sequence as bigint start with -9223372036854775808 increment by 1 minvalue -9223372036854775808;
GO

-- A holder's row: its sign of life, and what its transaction began with. It is written and removed
-- within the holder's own transaction, so nobody ever sees it but by READUNCOMMITTED, and it is
-- gone however that transaction ends. Only our procedures write here, while the context of a
-- session is anybody's: that serves ulid_sequence(), and nothing else is believed of it.
-- Every transaction has a key of its own: nobody waits for the row of another.
create table changefeed.ulid_life (
    feed_id        uniqueidentifier not null,
    shard_id       int not null,
    incidents      bigint not null,
    transaction_id bigint not null,
    session_id     int not null,
    timeout        int not null,
    alive_at       datetime2(3) not null,
    [time]         datetime2(3) not null,
    before_high    binary(8) null,
    before_low     bigint null,
    high           binary(8) not null,
    low            bigint not null,
    base           bigint not null,
    constraint pk_ulid_life primary key (feed_id, shard_id, incidents, transaction_id)
        with (allow_page_locks = off) --@sqlserver
);

-- What client libraries say on another connection while a statement of the transaction runs,
-- because nobody can write into the holder's row then.
create table changefeed.ulid_pulse (
    feed_id        uniqueidentifier not null,
    shard_id       int not null,
    transaction_id bigint not null,
    alive_at       datetime2(3) not null,
    constraint pk_ulid_pulse primary key (feed_id, shard_id, transaction_id)
        with (allow_page_locks = off) --@sqlserver
);
-- Shards do not wait for each other: neither for a page nor for a table.
alter table changefeed.shard_ulid set (lock_escalation = disable); --@sqlserver
alter table changefeed.incident set (lock_escalation = disable); --@sqlserver
alter table changefeed.ulid_life set (lock_escalation = disable); --@sqlserver
alter table changefeed.ulid_pulse set (lock_escalation = disable); --@sqlserver
GO

-- The lock and the signs of life ------------------------------------------------------------------
-- What a platform does in its own way is from here to ulid_silence. Whoever calls a part has set NOCOUNT.

-- Which transaction this is. The context of a session outlives a rollback, so it is bound to it.
create function changefeed.ulid_transaction_id () returns bigint as
begin
    return current_transaction_id(); --@sqlserver
    --@babelfish return txid_current();
end;
GO

create function changefeed.ulid_lock_name (@feed_id uniqueidentifier, @shard_id int, @incidents bigint) returns nvarchar(255) as
begin
    -- Babelfish keeps all databases in one.
    return concat(N'changefeed/', @feed_id, N'/', @shard_id, N'/', @incidents
        --@babelfish , N'/', db_id()
    );
end;
GO

-- Waits for so long for the lock of that name, and returns what sp_getapplock returns: 0 or 1 when
-- it is ours, -1 when the time is over, -3 when that would be a deadlock.
-- On Babelfish the fifth sp_getapplock of a session that fails brings the server down, and it does
-- not tell who holds a lock: there it is a lock of PostgreSQL, looked at every few milliseconds.
create procedure changefeed.ulid_try_lock @name nvarchar(255), @owner varchar(11), @milliseconds int as
begin
    declare @result int = -1;
    exec @result = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', --@sqlserver
        @LockOwner = @owner, @LockTimeout = @milliseconds; --@sqlserver
    --@babelfish declare @key bigint = hashtextextended(@name, 0), @nap int, @pause float = 0.002;
    --@babelfish declare @until datetime2(3) = dateadd(millisecond, @milliseconds, sysutcdatetime());
    --@babelfish while 1 = 1
    --@babelfish begin
    --@babelfish     if @owner = 'Session' select @result = convert(int, pg_try_advisory_lock(@key)) - 1;
    --@babelfish     else select @result = convert(int, pg_try_advisory_xact_lock(@key)) - 1;
    --@babelfish     if @result = 0 or sysutcdatetime() >= @until break;
    --@babelfish     select @nap = count(*) from (select pg_sleep(@pause) as slept) naps;
    --@babelfish     if @pause < 0.02 set @pause = @pause * 2;
    --@babelfish end;
    return @result;
end;
GO

-- Whether the lock of that name belongs to somebody, and to this session.
create procedure changefeed.ulid_locked @name nvarchar(255), @held bit output, @mine bit output as
begin
    set @mine = case when applock_mode('public', @name, 'Session') = 'Exclusive' then 1 else 0 end; --@sqlserver
    -- It can be granted to whoever holds it already.
    set @held = case when @mine = 1 or applock_test('public', @name, 'Exclusive', 'Session') = 0 then 1 else 0 end; --@sqlserver
    --@babelfish declare @key bigint = hashtextextended(@name, 0);
    --@babelfish declare @low bigint = @key & 4294967295;
    --@babelfish declare @high bigint = ((@key - @low) / 4294967296) & 4294967295;
    --@babelfish select @held = count(*), @mine = isnull(sum(case when l.pid = @@spid then 1 else 0 end), 0) from pg_locks l
    --@babelfish where l.locktype = 'advisory' and l.granted = convert(bit, 1) and l.objsubid = 1
    --@babelfish   and convert(bigint, l.classid) = @high and convert(bigint, l.objid) = @low;
end;
GO

create procedure changefeed.ulid_unlock @name nvarchar(255) as
begin
    declare @held bit, @mine bit = 0;
    exec changefeed.ulid_locked @name, @held output, @mine output;
    -- As often as it was taken.
    while @mine = 1
    begin
        exec sp_releaseapplock @Resource = @name, @LockOwner = 'Session'; --@sqlserver
        --@babelfish select @held = convert(int, pg_advisory_unlock(hashtextextended(@name, 0)));
        exec changefeed.ulid_locked @name, @held output, @mine output;
        --@babelfish if @@trancount > 0 break;
    end;
end;
GO

-- For how many milliseconds the holder of a lock has shown no sign of life; null where nothing is
-- known of it. Life is a call of one of our procedures, the pulse of a client library, and, for
-- those who may see other sessions (VIEW SERVER STATE; Azure: VIEW DATABASE STATE), a statement
-- that runs or has just ended. @timeout becomes the holder's own where that is longer: whoever announces a long
-- statement is given the time. On Babelfish, which shows nobody what is not committed, life is a
-- statement, as PostgreSQL sees it.
create procedure changefeed.ulid_silence
    @feed_id uniqueidentifier, @shard_id int, @incidents bigint, @timeout int output, @silent bigint output
as
begin
    set @silent = null;
    declare @alive_at datetime2(3), @pulse datetime2(3), @transaction_id bigint, @session_id int, @longest int; --@sqlserver
    -- READUNCOMMITTED, because the row is never anything else; we look for activity, and what is
    -- not committed shows it just as well. It also waits for nobody and starts no snapshot.
    select top (1) @alive_at = l.alive_at, @transaction_id = l.transaction_id, --@sqlserver
                   @session_id = l.session_id, @longest = l.timeout --@sqlserver
    from changefeed.ulid_life l with (readuncommitted) --@sqlserver
    where l.feed_id = @feed_id and l.shard_id = @shard_id and l.incidents = @incidents --@sqlserver
    order by l.alive_at desc; --@sqlserver
    if @alive_at is null return; --@sqlserver
    if @longest > @timeout set @timeout = @longest; --@sqlserver
    select @pulse = p.alive_at from changefeed.ulid_pulse p with (readuncommitted) --@sqlserver
    where p.feed_id = @feed_id and p.shard_id = @shard_id and p.transaction_id = @transaction_id; --@sqlserver
    if @pulse > @alive_at set @alive_at = @pulse; --@sqlserver
    set @silent = datediff_big(millisecond, @alive_at, sysutcdatetime()); --@sqlserver
    -- Without the right everybody sees no session but the own one. One that waits for its client
    -- in the middle of a result is as silent as an idle one.
    -- What the server says of a session is local time, which steps by the hour or half of it twice a year. The
    -- session has ended a request since the sign of life that it gave us, so what is left of half hours is the truth.
    if @silent >= @timeout --@sqlserver
        select @silent = case --@sqlserver
            when exists (select 1 from sys.dm_exec_requests r where r.session_id = s.session_id --@sqlserver
                         and isnull(r.wait_type, N'') <> N'ASYNC_NETWORK_IO') then 0 --@sqlserver
            when (datediff_big(millisecond, s.last_request_end_time, getdate()) % 1800000 + 1800000) % 1800000 < @silent --@sqlserver
                then (datediff_big(millisecond, s.last_request_end_time, getdate()) % 1800000 + 1800000) % 1800000 --@sqlserver
            else @silent end --@sqlserver
        from sys.dm_exec_sessions s where s.session_id = @session_id; --@sqlserver
    -- Without this every look within one transaction shows what the first one saw.
    --@babelfish declare @cleared int;
    --@babelfish select @cleared = count(*) from (select pg_stat_clear_snapshot() as cleared) looks;
    --@babelfish declare @key bigint = hashtextextended(changefeed.ulid_lock_name(@feed_id, @shard_id, @incidents), 0);
    --@babelfish declare @low bigint = @key & 4294967295;
    --@babelfish declare @high bigint = ((@key - @low) / 4294967296) & 4294967295;
    -- Who waits for its client in the middle of a statement is silent, since when, is not known.
    -- The sessions of other logins cannot be seen: they count as living.
    --@babelfish select @silent = case when a.state is null then 0
    --@babelfish                       when a.state = 'active' and a.wait_event_type = 'Client' then null
    --@babelfish                       when a.state = 'active' then 0
    --@babelfish                       else convert(bigint, 1000 * date_part('epoch', clock_timestamp() - a.state_change)) end
    --@babelfish from pg_locks l join pg_stat_activity a on a.pid = l.pid
    --@babelfish where l.locktype = 'advisory' and l.granted = convert(bit, 1) and l.objsubid = 1
    --@babelfish   and convert(bigint, l.classid) = @high and convert(bigint, l.objid) = @low;
end;
GO

-- Waits for the shard's lock, for the transaction or for the session. Returns the number of
-- incidents that the lock was made with.
create procedure changefeed.ulid_wait
    @feed_id uniqueidentifier, @shard_id int, @timeout int, @wait int, @owner varchar(11),
    @incidents bigint output
as
begin
    set xact_abort on;
    declare @started datetime2(3) = sysutcdatetime(), @unknown_since datetime2(3);
    declare @name nvarchar(255), @now_counted bigint, @result int, @step int = 0;
    declare @longest int, @silent bigint, @message nvarchar(2000), @note nvarchar(255);
    -- READUNCOMMITTED here and below: a number that is being raised counts as raised, we must not
    -- wait for whoever is raising it, and a snapshot must not begin before we have the lock.
    select @incidents = isnull(max(i.[count]), 0) from changefeed.incident i with (readuncommitted)
    where i.feed_id = @feed_id and i.shard_id = @shard_id;
    set @name = changefeed.ulid_lock_name(@feed_id, @shard_id, @incidents);
    while 1 = 1
    begin
        exec @result = changefeed.ulid_try_lock @name, @owner, @step;
        -- Whoever waits while the lock is burned has to prove that its client lives, by trying
        -- again: a waiter whose client is dead as well must not take the new lock.
        select @now_counted = isnull(max(i.[count]), 0) from changefeed.incident i with (readuncommitted)
        where i.feed_id = @feed_id and i.shard_id = @shard_id;
        if @now_counted <> @incidents
        begin
            if @result >= 0 and @owner = 'Session' exec changefeed.ulid_unlock @name;
            set @message = concat(N'changefeed: the lock of feed ', @feed_id, N' shard ', @shard_id,
                N' was burned while waiting for it; roll back and try again');
            throw 55601, @message, 1;
        end;
        if @result >= 0 return;
        if @result < -1
        begin
            set @message = concat(N'changefeed: waiting for feed ', @feed_id, N' shard ', @shard_id,
                N' was cut off by the server, code ', @result);
            throw 55602, @message, 1;
        end;
        set @longest = @timeout;
        exec changefeed.ulid_silence @feed_id, @shard_id, @incidents, @longest output, @silent output;
        -- Of a holder that has shown nothing yet, only what we see ourselves counts.
        if @silent is not null set @unknown_since = null;
        else if @unknown_since is null set @unknown_since = sysutcdatetime();
        if @unknown_since is not null set @silent = datediff_big(millisecond, @unknown_since, sysutcdatetime());
        if @silent >= @longest
        begin
            -- So that report_incident in this session knows what we saw.
            set @note = @name;
            exec sp_set_session_context N'changefeed.ulid_incident', @note;
            set @message = concat(N'changefeed: the holder of feed ', @feed_id, N' shard ', @shard_id,
                N' has been silent for ', @silent, N' ms; roll back, exec changefeed.report_incident ''',
                @feed_id, N''', ', @shard_id, N', ', @timeout, N', and try again');
            throw 55601, @message, 1;
        end;
        if datediff_big(millisecond, @started, sysutcdatetime()) >= @wait
        begin
            set @message = concat(N'changefeed: feed ', @feed_id, N' shard ', @shard_id,
                N' is busy: others held it for ', @wait, N' ms; try again later, or use more shards');
            throw 55602, @message, 1;
        end;
        -- Wake up when the holder will have been silent for long enough, not much later.
        -- A lock that is burned by somebody else is noticed at the next look.
        set @step = case when @longest - @silent < 200 then @longest - @silent + 1 else 200 end;
        if @step > @timeout / 5 + 5 set @step = @timeout / 5 + 5;
    end;
end;
GO

-- Counts an incident, once for all who have seen it, so that the shard's writers move on to a new
-- lock. Call it after 55601, when the transaction is rolled back and outside of any other: a
-- rollback would take the number back, and doing it is the proof that the client lives.
create procedure changefeed.report_incident
    @feed_id uniqueidentifier, @shard_id int, @timeout int = 1000, @raised bit = null output
as
begin
    set nocount on;
    set xact_abort on;
    set rowcount 0;
    set implicit_transactions off;
    set transaction isolation level read committed; --@sqlserver
    declare @observed bigint, @silent bigint, @held bit, @mine bit, @name nvarchar(255), @noted nvarchar(255);
    set @raised = 0;
    if @@trancount > 0
        throw 55604, 'changefeed: report_incident must not be called inside a transaction: it would be taken back with it', 1;
    if @timeout is null or @timeout < 10
        throw 55604, 'changefeed: timeout must be at least 10 ms', 1;
    set @noted = convert(nvarchar(255), session_context(N'changefeed.ulid_incident'));
    exec sp_set_session_context N'changefeed.ulid_incident', null;
    select @observed = isnull(max(i.[count]), 0) from changefeed.incident i
    where i.feed_id = @feed_id and i.shard_id = @shard_id;
    set @name = changefeed.ulid_lock_name(@feed_id, @shard_id, @observed);
    -- Somebody else was quicker, or the holder woke up and is gone.
    exec changefeed.ulid_locked @name, @held output, @mine output;
    if @held = 0 or @mine = 1 return;
    exec changefeed.ulid_silence @feed_id, @shard_id, @observed, @timeout output, @silent output;
    -- Of a holder that has shown nothing, one look tells nothing: we must have waited for it.
    if @silent < @timeout or (@silent is null and (@noted is null or @noted <> @name)) return;
    update changefeed.incident set [count] = [count] + 1, reported_at = sysutcdatetime()
    where feed_id = @feed_id and shard_id = @shard_id and [count] = @observed;
    set @raised = @@rowcount;
    if @raised = 0 and @observed = 0
    begin try
        insert into changefeed.incident (feed_id, shard_id, [count], reported_at)
        select @feed_id, @shard_id, 1, sysutcdatetime()
        where not exists (select 1 from changefeed.incident i where i.feed_id = @feed_id and i.shard_id = @shard_id);
        set @raised = @@rowcount;
    end try
    begin catch
        -- Somebody else was quicker.
        if error_number() not in (2627, 2601) throw;
    end catch;
end;
GO
