-- The transactions themselves. The lock, how it is burned, and what all of this is about stand in ulid_locks.sql.

-- Takes the shard's lock for the session, for transactions that must not begin before they have
-- it: those of snapshot isolation. Then begin the transaction, call begin_ulid_transaction in it,
-- and when it has ended, in whatever way, unlock_ulid_shard (or rollback_ulid_transaction).
create procedure changefeed.lock_ulid_shard
    @feed_id uniqueidentifier, @shard_id int, @timeout int = 1000, @wait int = 30000
as
begin
    set nocount on;
    set xact_abort on;
    set rowcount 0;
    set implicit_transactions off;
    set transaction isolation level read committed; --@sqlserver
    declare @incidents bigint, @name nvarchar(255), @before nvarchar(255);
    if @@trancount > 0
        throw 55604, 'changefeed: lock_ulid_shard is for before the transaction begins', 1;
    if @feed_id is null or @shard_id is null
        throw 55604, 'changefeed: a ULID transaction needs a feed and a shard, not null', 1;
    if @timeout is null or @timeout < 10 or @wait is null or @wait < 0
        throw 55604, 'changefeed: timeout must be at least 10 ms, and wait not negative', 1;
    set @before = convert(nvarchar(255), session_context(N'changefeed.ulid_lock'));
    if @before is not null exec changefeed.ulid_unlock @before;
    exec sp_set_session_context N'changefeed.ulid_lock', null;
    exec changefeed.ulid_wait @feed_id, @shard_id, @timeout, @wait, 'Session', @incidents output;
    set @name = changefeed.ulid_lock_name(@feed_id, @shard_id, @incidents);
    exec sp_set_session_context N'changefeed.ulid_lock', @name;
end;
GO

create procedure changefeed.unlock_ulid_shard as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @name nvarchar(255) = convert(nvarchar(255), session_context(N'changefeed.ulid_lock'));
    if @name is not null exec changefeed.ulid_unlock @name;
    exec sp_set_session_context N'changefeed.ulid_lock', null;
end;
GO

-- Waits for the lock, unless the session has it, reads the shard's state and prepares this
-- transaction for new_ulid and ulid_sequence. Of the ULIDs from (high, low) on, the first
-- @reserved are left to the caller, who counts them by itself.
create procedure changefeed.ulid_enter
    @feed_id uniqueidentifier, @shard_id int, @timeout int, @time_hint datetime2(3), @wait int,
    @reserved bigint, @time datetime2(3) output, @high binary(8) output, @low bigint output
as
begin
    set xact_abort on;
    -- A caller that has limited its statements has not meant ours, which draw from a sequence.
    set rowcount 0;
    declare @level int, @incidents bigint, @name nvarchar(255), @message nvarchar(2000);
    declare @held bit, @mine bit = 0, @shard nvarchar(255);
    declare @before_time datetime2(3), @before_high binary(8), @before_low bigint, @base bigint;
    declare @floor_time datetime2(3), @floor_high binary(8), @floor_low bigint;
    declare @left_time datetime2(3), @left_high binary(8), @left_low bigint;
    declare @ahead bigint, @random binary(10), @milliseconds bigint, @transaction_id bigint, @start bigint, @due datetime2(3);
    -- With implicit transactions it begins when a table is touched, and not before.
    if @@trancount = 0
    begin
        select @incidents = max(i.[count]) from changefeed.incident i with (readuncommitted)
        where i.feed_id = @feed_id and i.shard_id = @shard_id;
        if @@trancount = 0
            throw 55604, 'changefeed: there is no transaction; call begin_ulid_transaction after BEGIN TRANSACTION', 1;
    end;
    if @feed_id is null or @shard_id is null
        throw 55604, 'changefeed: a ULID transaction needs a feed and a shard, not null', 1;
    if @timeout is null or @timeout < 10 or @wait is null or @wait < 0
        throw 55604, 'changefeed: timeout must be at least 10 ms, and wait not negative', 1;
    set @transaction_id = changefeed.ulid_transaction_id();
    if convert(bigint, session_context(N'changefeed.ulid_transaction')) = @transaction_id
    begin
        set @message = concat(N'changefeed: a ULID transaction of ',
            convert(nvarchar(255), session_context(N'changefeed.ulid_shard')),
            N' is already open in this transaction; a transaction writes to one shard');
        throw 55604, @message, 1;
    end;
    select @level = s.transaction_isolation_level from sys.dm_exec_sessions s where s.session_id = @@spid;
    set @name = convert(nvarchar(255), session_context(N'changefeed.ulid_lock'));
    if @name is not null
    begin
        select @incidents = isnull(max(i.[count]), 0) from changefeed.incident i with (readuncommitted)
        where i.feed_id = @feed_id and i.shard_id = @shard_id;
        exec changefeed.ulid_locked @name, @held output, @mine output;
        if @mine = 1 and @name <> changefeed.ulid_lock_name(@feed_id, @shard_id, @incidents)
        begin
            set @message = concat(N'changefeed: the lock that this session holds, ', @name,
                N', is that of another shard or was burned; roll back, unlock_ulid_shard, and try again');
            throw 55601, @message, 1;
        end;
    end;
    if @mine = 0
    begin
        -- With a snapshot that is older than the lock, the state would be stale.
        if @level = 5
        --@babelfish    or @level <> 2
            throw 55604, 'changefeed: with this isolation level the snapshot would be older than the lock; call lock_ulid_shard before BEGIN TRANSACTION', 1;
        -- Babelfish reads a procedure anew in every session, which takes its time: not while others
        -- wait for us.
        --@babelfish exec changefeed.commit_ulid_transaction @rehearse = 1;
        exec changefeed.ulid_wait @feed_id, @shard_id, @timeout, @wait, 'Transaction', @incidents output;
    end;
    -- Under repeatable read and serializable a lock on what we read would stay until the end, and
    -- a holder that dies would stop the commits of all others with it. (The level is the caller's
    -- again when we return; one of snapshot stays, so that the snapshot begins here.)
    if @level <> 5 set transaction isolation level read committed; --@sqlserver
    set @time = isnull(@time_hint, sysutcdatetime());
    if @time < '1970-01-01'
        throw 55604, 'changefeed: a ULID holds no time before 1970', 1;
    if @time_hint > sysutcdatetime()
    begin
        select @ahead = max(l.ahead_milliseconds) from changefeed.ulid_limit l with (readuncommitted);
        if datediff_big(millisecond, sysutcdatetime(), @time_hint) > @ahead
        begin
            set @message = concat(N'changefeed: the time hint ', convert(nvarchar(30), @time_hint, 126),
                N' is more than ', @ahead, N' ms ahead of the database''s clock');
            throw 55604, @message, 1;
        end;
    end;
    select @before_time = s.[time], @before_high = s.ulid_high, @before_low = s.ulid_low
    from changefeed.shard_ulid s where s.feed_id = @feed_id and s.shard_id = @shard_id;
    set @base = next value for changefeed.sequence;
    select @floor_time = @before_time, @floor_high = @before_high, @floor_low = @before_low;
    -- Who commits without commit_ulid_transaction leaves its row behind. That cannot be kept from
    -- happening, as nothing here runs at a COMMIT, but what it gave away must not be given again.
    select top (1) @left_time = l.[time], @left_high = l.high, @left_low = l.low + (@base - l.base)
    from changefeed.ulid_life l with (readuncommitted)
    where l.feed_id = @feed_id and l.shard_id = @shard_id
    order by l.high desc, l.low + (@base - l.base) desc;
    if @left_high is not null
    begin
        if @before_high is null or @left_high > @before_high or (@left_high = @before_high and @left_low > @before_low)
        begin
            select @floor_time = @left_time, @floor_high = @left_high, @floor_low = @left_low;
        end;
        -- Rows of transactions that are still open are locked, and passed over.
        if @level <> 5
            delete from changefeed.ulid_life with (readcommittedlock, readpast, rowlock) where feed_id = @feed_id and shard_id = @shard_id;
    end;
    -- Less than 2^61 ULIDs are left before the lower half would wrap around: on to the next millisecond.
    if @time <= @floor_time and (@floor_low & convert(bigint, 9223372036854775807)) >= convert(bigint, 6917529027641081856)
    begin
        if @floor_time >= '9999-12-31T23:59:59.999'
            throw 55604, 'changefeed: the ULIDs of this shard are used up', 1;
        set @time = dateadd(millisecond, 1, @floor_time);
    end;
    if @floor_time is null or @time > @floor_time
    begin
        set @random = crypt_gen_random(10); --@sqlserver
        -- The bytes of a random UUID that are random throughout.
        --@babelfish declare @uuid binary(16) = convert(binary(16), newid());
        -- As numbers, because Babelfish adds bytes up instead of joining them. The highest bit of
        -- 48 is the sign of 64 from the year 6429 on.
        set @milliseconds = datediff_big(millisecond, '1970-01-01', @time);
        if @milliseconds >= 140737488355328 set @milliseconds = @milliseconds - convert(bigint, 281474976710656);
        -- The second-highest bit is cleared, so that counting upwards never overflows.
        select @high = convert(binary(8), @milliseconds * 65536 + (convert(bigint, convert(int, substring(@random, 1, 2))) & 65535)), --@sqlserver
               @low = convert(bigint, substring(@random, 3, 8)) & convert(bigint, -4611686018427387905); --@sqlserver
        --@babelfish set @start = @milliseconds * 65536 + (convert(bigint, convert(int, substring(@uuid, 1, 2))) & 65535);
        --@babelfish set @high = convert(binary(8), @start);
        --@babelfish set @low = (convert(bigint, convert(int, substring(@uuid, 3, 4))) * 4294967296 + (convert(bigint, convert(int, substring(@uuid, 11, 4))) & 4294967295)) & convert(bigint, -4611686018427387905);
    end
    else
    begin
        -- The clock stood still or went back: keep the time, go on counting.
        select @time = @floor_time, @high = @floor_high, @low = @floor_low;
    end;
    insert into changefeed.ulid_life (feed_id, shard_id, incidents, transaction_id, session_id, timeout,
                                      alive_at, [time], before_high, before_low, high, low, base)
    values (@feed_id, @shard_id, @incidents, @transaction_id, @@spid, @timeout,
            sysutcdatetime(), @time, @before_high, @before_low, @high, @low + @reserved, @base);
    select @shard = concat(@feed_id, N'/', @shard_id), @start = @low + @reserved,
           @due = dateadd(millisecond, @timeout / 10, sysutcdatetime());
    exec sp_set_session_context N'changefeed.ulid_incident', null;
    exec sp_set_session_context N'changefeed.ulid_transaction', @transaction_id;
    exec sp_set_session_context N'changefeed.ulid_shard', @shard;
    exec sp_set_session_context N'changefeed.ulid_high', @high;
    exec sp_set_session_context N'changefeed.ulid_low', @start;
    exec sp_set_session_context N'changefeed.ulid_base', @base;
    exec sp_set_session_context N'changefeed.ulid_due', @due;
end;
GO

-- @timeout: the silence after which a holder is judged dead, @wait: how long to queue behind living
-- ones, both in milliseconds. @time_hint: when the transaction happens, in UTC, now unless given;
-- raised to the shard's newest time where it is older.
create procedure changefeed.begin_ulid_transaction
    @feed_id uniqueidentifier, @shard_id int, @timeout int = 1000, @time_hint datetime2(3) = null,
    @wait int = 30000
as
begin
    set nocount on;
    set xact_abort on;
    declare @time datetime2(3), @high binary(8), @low bigint;
    exec changefeed.ulid_enter @feed_id, @shard_id, @timeout, @time_hint, @wait, 0,
        @time output, @high output, @low output;
end;
GO

-- The same for client libraries, which count the first 2^36 ULIDs by themselves.
create procedure changefeed.ulid_begin
    @feed_id uniqueidentifier, @shard_id int, @timeout int, @time_hint datetime2(3), @wait int
as
begin
    set nocount on;
    set xact_abort on;
    declare @time datetime2(3), @high binary(8), @low bigint;
    exec changefeed.ulid_enter @feed_id, @shard_id, @timeout, @time_hint, @wait, 68719476736,
        @time output, @high output, @low output;
    select datediff_big(millisecond, '1970-01-01', @time), convert(bigint, @high), @low,
           changefeed.ulid_transaction_id();
end;
GO

-- Says that the holder lives; for transactions that compute for long between two statements.
create procedure changefeed.ulid_alive as
begin
    set nocount on;
    -- Within a doomed transaction nothing can be written, and nothing has to be.
    if xact_state() <> 1 return;
    declare @transaction_id bigint = convert(bigint, session_context(N'changefeed.ulid_transaction'));
    declare @shard nvarchar(255) = convert(nvarchar(255), session_context(N'changefeed.ulid_shard'));
    declare @now datetime2(3) = sysutcdatetime();
    if @shard is null or @transaction_id is null or @transaction_id <> changefeed.ulid_transaction_id() return;
    declare @feed_id uniqueidentifier = convert(uniqueidentifier, left(@shard, 36)); --@sqlserver
    declare @shard_id int = convert(int, substring(@shard, 38, 20)), @incidents bigint, @due datetime2(3); --@sqlserver
    -- The row is written by its whole key here and below, which is looked up without a lock. By a part
    -- of the key the server would take update locks on all rows of the shard and wait for a dead
    -- holder, whose row is locked: burning its lock would free nobody.
    select @incidents = max(l.incidents), @due = dateadd(millisecond, max(l.timeout) / 10, @now) --@sqlserver
    from changefeed.ulid_life l with (readuncommitted) --@sqlserver
    where l.feed_id = @feed_id and l.shard_id = @shard_id and l.transaction_id = @transaction_id; --@sqlserver
    -- Not more often than needed, and it costs a look when nothing is.
    update changefeed.ulid_life set alive_at = @now --@sqlserver
    where feed_id = @feed_id and shard_id = @shard_id --@sqlserver
      and incidents = @incidents and transaction_id = @transaction_id --@sqlserver
      and alive_at <= dateadd(millisecond, -timeout / 10, @now); --@sqlserver
    exec sp_set_session_context N'changefeed.ulid_due', @due; --@sqlserver
end;
GO

-- Says so on another connection, outside of any transaction; for client libraries, while a
-- statement of the transaction runs.
create procedure changefeed.ulid_beat @feed_id uniqueidentifier, @shard_id int, @transaction_id bigint as
begin
    set nocount on;
    set xact_abort on;
    set rowcount 0;
    set implicit_transactions off;
    update changefeed.ulid_pulse set alive_at = sysutcdatetime()
    where feed_id = @feed_id and shard_id = @shard_id and transaction_id = @transaction_id;
    if @@rowcount > 0 return;
    insert into changefeed.ulid_pulse (feed_id, shard_id, transaction_id, alive_at)
    values (@feed_id, @shard_id, @transaction_id, sysutcdatetime());
    -- What transactions of long ago have left behind.
    delete from changefeed.ulid_pulse
    where feed_id = @feed_id and shard_id = @shard_id and alive_at < dateadd(hour, -1, sysutcdatetime());
end;
GO

-- The ULID for the next value of changefeed.sequence. It runs once per row of an INSERT ... SELECT.
create function changefeed.ulid_sequence (@value bigint) returns binary(16) as
begin
    declare @low bigint, @base bigint, @ulid binary(16);
    -- A loop, because SQL Server 2019 does not write a function with one into the query itself,
    -- where @value, a number that is drawn, would stand more than once.
    while @ulid is null
    begin
        select @low = convert(bigint, session_context(N'changefeed.ulid_low')),
               @base = convert(bigint, session_context(N'changefeed.ulid_base'));
        -- A function can raise no error of its own: the words are in that of the conversion.
        if @low is null or isnull(convert(bigint, session_context(N'changefeed.ulid_transaction')), -1) <> changefeed.ulid_transaction_id()
            return convert(int, N'changefeed: there is no ULID transaction here; call begin_ulid_transaction after BEGIN TRANSACTION');
        -- More than 2^60 of them would wrap around.
        if @value is null or @value <= @base or @value - @base >= convert(bigint, 1152921504606846976)
            return convert(int, N'changefeed: ulid_sequence takes next value for changefeed.sequence, and nothing else');
        set @ulid = convert(binary(8), session_context(N'changefeed.ulid_high')) + convert(binary(8), @low + (@value - @base)); --@sqlserver
        --@babelfish set @ulid = convert(binary(16), '0x' + encode(int8send(convert(bigint, convert(binary(8), session_context(N'changefeed.ulid_high')))), 'hex') + encode(int8send(@low + (@value - @base)), 'hex'), 1);
    end;
    return @ulid;
end;
GO

create procedure changefeed.new_ulid @ulid binary(16) output as
begin
    set nocount on;
    set xact_abort on;
    set rowcount 0;
    if isnull(convert(bigint, session_context(N'changefeed.ulid_transaction')), -1) <> changefeed.ulid_transaction_id()
        throw 55604, 'changefeed: there is no ULID transaction here; call begin_ulid_transaction after BEGIN TRANSACTION', 1;
    declare @value bigint = next value for changefeed.sequence;
    set @ulid = changefeed.ulid_sequence(@value);
    -- When the next sign of life is due. Before that, nobody judges, and looking would cost more than the ULID.
    if sysutcdatetime() < convert(datetime2(3), session_context(N'changefeed.ulid_due')) return;
    exec changefeed.ulid_alive;
end;
GO

-- Verifies that nobody has judged this transaction dead and nobody else has moved the shard, and
-- stores where the shard stands now. Commit directly afterwards, in the same batch: from here on
-- the shard's rows are locked, and whoever gets lost in between is noticed by nobody but TCP.
create procedure changefeed.commit_ulid_transaction
    --@babelfish @rehearse bit = 0
as
begin
    set nocount on;
    --@babelfish if @rehearse = 1 return;
    set xact_abort on;
    set rowcount 0;
    declare @transaction_id bigint = convert(bigint, session_context(N'changefeed.ulid_transaction'));
    declare @shard nvarchar(255) = convert(nvarchar(255), session_context(N'changefeed.ulid_shard'));
    declare @feed_id uniqueidentifier, @shard_id int, @incidents bigint, @message nvarchar(2000);
    declare @time datetime2(3), @before_high binary(8), @before_low bigint;
    declare @high binary(8), @low bigint, @base bigint, @drawn bigint, @changed int;
    declare @begun table (incidents bigint, [time] datetime2(3), before_high binary(8),
                          before_low bigint, high binary(8), low bigint, base bigint);
    if @@trancount = 0 or @transaction_id is null or @transaction_id <> changefeed.ulid_transaction_id()
        throw 55604, 'changefeed: there is no ULID transaction to commit; call begin_ulid_transaction after BEGIN TRANSACTION', 1;
    if @@trancount > 1
        throw 55604, 'changefeed: the COMMIT that follows would end an inner transaction only, and leave the shard locked; call this before the outermost (under IMPLICIT_TRANSACTIONS a BEGIN TRANSACTION begins two: leave it out)', 1;
    select @feed_id = convert(uniqueidentifier, left(@shard, 36)), @shard_id = convert(int, substring(@shard, 38, 20));
    -- What else the session knows of its transaction means nothing without this.
    exec sp_set_session_context N'changefeed.ulid_transaction', null;
    select @incidents = max(l.incidents) from changefeed.ulid_life l with (readuncommitted)
    where l.feed_id = @feed_id and l.shard_id = @shard_id and l.transaction_id = @transaction_id;
    delete from changefeed.ulid_life
    output deleted.incidents, deleted.[time], deleted.before_high, deleted.before_low, deleted.high, deleted.low, deleted.base into @begun
    where feed_id = @feed_id and shard_id = @shard_id
      and incidents = @incidents and transaction_id = @transaction_id;
    select @incidents = b.incidents, @time = b.[time], @before_high = b.before_high,
           @before_low = b.before_low, @high = b.high, @low = b.low, @base = b.base from @begun b;
    if @high is null
        throw 55604, 'changefeed: begin_ulid_transaction was taken back by a savepoint; begin again', 1;
    -- Updated without a change, so that it is the newest number, whatever snapshot we have, and
    -- stays so until we have committed; the hint keeps the lock, see sweep_shard.
    begin try
        update changefeed.incident with (updlock, rowlock) set [count] = [count]
        where feed_id = @feed_id and shard_id = @shard_id and [count] = @incidents;
        set @changed = @@rowcount;
        if @changed = 0 and @incidents = 0
        begin
            insert into changefeed.incident (feed_id, shard_id, [count])
            select @feed_id, @shard_id, 0
            where not exists (select 1 from changefeed.incident i where i.feed_id = @feed_id and i.shard_id = @shard_id);
            set @changed = @@rowcount;
        end;
    end try
    begin catch
        -- Somebody raised it from nothing, or since our snapshot.
        if error_number() not in (2627, 2601, 3960) throw;
        set @changed = 0;
    end catch;
    if @changed = 0
    begin
        set @message = concat(N'changefeed: this transaction of feed ', @feed_id, N' shard ', @shard_id,
            N' was silent for too long, and its lock was burned; roll back and do it again');
        throw 55603, @message, 1;
    end;
    set @drawn = next value for changefeed.sequence;
    if @drawn - @base >= convert(bigint, 1152921504606846976)
        throw 55604, 'changefeed: this transaction has used up its ULIDs; begin another one', 1;
    set @low = @low + (@drawn - @base);
    begin try
        if @before_high is null
            insert into changefeed.shard_ulid (feed_id, shard_id, [time], ulid_high, ulid_low)
            values (@feed_id, @shard_id, @time, @high, @low);
        else
            update changefeed.shard_ulid set [time] = @time, ulid_high = @high, ulid_low = @low
            where feed_id = @feed_id and shard_id = @shard_id
              and ulid_high = @before_high and ulid_low = @before_low;
        set @changed = @@rowcount;
    end try
    begin catch
        if error_number() not in (2627, 2601, 3960) throw;
        set @changed = 0;
    end catch;
    if @changed = 0
    begin
        set @message = concat(N'changefeed: feed ', @feed_id, N' shard ', @shard_id,
            N' was moved by somebody else during this transaction; roll back and do it again');
        throw 55603, @message, 1;
    end;
end;
GO

-- Gives up the ULID transaction of this session and frees its lock. Call it before ROLLBACK or
-- after it, or when nothing is known: it does no harm. What was not committed cannot be any more.
create procedure changefeed.rollback_ulid_transaction as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @transaction_id bigint = convert(bigint, session_context(N'changefeed.ulid_transaction'));
    declare @shard nvarchar(255) = convert(nvarchar(255), session_context(N'changefeed.ulid_shard'));
    declare @feed_id uniqueidentifier, @shard_id int, @incidents bigint;
    -- A lock of the transaction is freed by the server when that ends.
    if xact_state() = 1 and @transaction_id = changefeed.ulid_transaction_id()
    begin
        set @feed_id = convert(uniqueidentifier, left(@shard, 36));
        set @shard_id = convert(int, substring(@shard, 38, 20));
        select @incidents = max(l.incidents) from changefeed.ulid_life l with (readuncommitted)
        where l.feed_id = @feed_id and l.shard_id = @shard_id and l.transaction_id = @transaction_id;
        delete from changefeed.ulid_life
        where feed_id = @feed_id and shard_id = @shard_id
          and incidents = @incidents and transaction_id = @transaction_id;
    end;
    exec sp_set_session_context N'changefeed.ulid_transaction', null;
    exec changefeed.unlock_ulid_shard;
end;
GO

grant select on changefeed.shard_ulid to changefeed_reader;
grant select on changefeed.ulid_limit to changefeed_reader;
grant select on changefeed.incident to changefeed_reader;
grant select on changefeed.incident to changefeed_writer;
grant select on changefeed.schema_version to changefeed_writer;
grant update on changefeed.sequence to changefeed_writer;
--@babelfish grant update on changefeed.sequence to changefeed_admin;
grant execute on changefeed.ulid_sequence to changefeed_writer;
grant execute on changefeed.begin_ulid_transaction to changefeed_writer;
grant execute on changefeed.commit_ulid_transaction to changefeed_writer;
grant execute on changefeed.rollback_ulid_transaction to changefeed_writer;
grant execute on changefeed.new_ulid to changefeed_writer;
grant execute on changefeed.report_incident to changefeed_writer;
grant execute on changefeed.lock_ulid_shard to changefeed_writer;
grant execute on changefeed.unlock_ulid_shard to changefeed_writer;
grant execute on changefeed.ulid_begin to changefeed_writer;
grant execute on changefeed.ulid_alive to changefeed_writer;
grant execute on changefeed.ulid_beat to changefeed_writer;
-- There a procedure of ours needs the rights of whoever calls it.
--@babelfish grant execute on changefeed.ulid_transaction_id to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_lock_name to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_try_lock to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_locked to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_unlock to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_silence to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_wait to changefeed_writer;
--@babelfish grant execute on changefeed.ulid_enter to changefeed_writer;
--@babelfish grant select, insert, update, delete on changefeed.shard_ulid to changefeed_writer;
--@babelfish grant select on changefeed.ulid_limit to changefeed_writer;
--@babelfish grant select, insert, update, delete on changefeed.incident to changefeed_writer;
--@babelfish grant select, insert, update, delete on changefeed.ulid_life to changefeed_writer;
--@babelfish grant select, insert, update, delete on changefeed.ulid_pulse to changefeed_writer;
GO
