-- changefeed: watches on SQL Server 2017 and later, Azure SQL, and Babelfish for PostgreSQL.
--
-- How a changed row gets to a function:
--   1. Changed keys are noted in the writer's transaction: by the server itself where change tracking
--      is on for the table, and otherwise by a trigger of ours, in `changes_<table_id>`. Nobody but
--      writers inserts there, and workers only delete what is committed: no writer ever waits for a
--      worker or meets it in a deadlock.
--   2. A worker moves committed keys to the backlog of each function that watches the table,
--      `leases_<function_id>_<table_id>`: one row per key, however often it has changed. The keys get
--      their version here.
--   3. A batch is leased by one update, handed over, and deleted from the backlog when it is done.
--
-- Only the first half of step 2 knows which of the two it was that noted the keys.
--
-- Whoever writes to the backlogs of a table first updates its row in `watched_table`, which is a lock
-- that every server respects, and commits within the same message: nothing is held between two calls,
-- and versions become visible in their order. One table's workers do not wait for another's.
--
-- What the trigger has noted is taken when it is committed, whenever that is: there is no watermark
-- over it. Of change tracking's versions there is one (`tracked_version`), and it is sound: the server
-- numbers transactions when they commit, and both the current version and the changes up to it are read
-- within one snapshot, so that no change below it can turn up later.

-- Orders what triggers note. Whoever changes a row holds its lock, so that a later change of it has a
-- larger number, if the numbers are drawn one by one: a cache is shared by all sessions of a SQL
-- Server, but each session of Babelfish has its own.
create sequence changefeed.change_order as bigint start with 1 increment by 1
    cache 1000; --@sqlserver
    --@babelfish cache 1;
GO

-- Tables that are tracked because somebody watches them.
create table changefeed.watched_table (
    -- The table's object_id.
    table_id        int not null constraint pk_watched_table primary key,
    -- Grows when functions come and go. Whoever moves changes must know all of them.
    generation      bigint not null constraint df_watched_table_generation default 1,
    -- The last version or number of a lease that was given out. Receivers of webhooks tell batches apart
    -- by their versions, so the first one is by the time: those of another database are others.
    last_version    bigint not null,
    -- Whether the server's own change tracking notes the changes, and how far they were moved.
    native          bit not null,
    tracked_version bigint null,
    -- The server's own table that it notes them in, and the version that it began with. Both are others after
    -- change tracking of the table was switched off and on again, and the version is after TRUNCATE; the versions of
    -- changes alone do not always tell.
    tracked_in      varchar(50) null,
    -- The primary key that our tables were made for: a JSON array of names, numbers and types.
    [key]           nvarchar(max) not null,
    -- Whether the columns that were changed are noted, because some function wants to know them.
    [columns]       bit not null constraint df_watched_table_columns default 0,
    -- When and why changes were missed, so that all rows were handed over anew.
    missed_at       datetime2(3) null,
    missed          nvarchar(400) null
);
GO

create table changefeed.watch (
    -- Names that differ in case are different names, and sort as they do elsewhere.
    name                   varchar(100) collate Latin1_General_BIN2 not null constraint pk_watch primary key,
    function_id            varchar(16) not null constraint uq_watch_function unique,
    table_id               int not null,
    -- What `changefeed serve` runs; null for a function that runs elsewhere.
    definition             nvarchar(max) null,
    -- Whether it wants to know which columns were changed.
    [columns]              bit not null constraint df_watch_columns default 0,
    -- How many unprocessed changes one worker is good for.
    max_changes_per_worker int not null constraint df_watch_per_worker default 1000
        constraint ck_watch_per_worker check (max_changes_per_worker > 0),
    -- While existing rows are still to be handed over: as what (0 inserts, 1 updates), and the key of
    -- the last one, a JSON array of texts.
    loading                smallint null,
    loaded_to              nvarchar(max) null,
    created_at             datetime2(3) not null constraint df_watch_created default sysutcdatetime(),
    constraint ck_watch_name check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name) = 0)
);
GO

create table changefeed.global_state (
    function_id       varchar(16) not null,
    table_id          int not null,
    -- Every change up to this version has been processed or parked. Kept about once a second.
    last_sync_version bigint not null constraint df_global_state_version default 0,
    last_access_time  datetime2(3) not null constraint df_global_state_access default sysutcdatetime(),
    constraint pk_global_state primary key (function_id, table_id)
);
GO

-- The latest time that was seen on the server's clock.
create table changefeed.clock (
    only_row tinyint not null constraint pk_clock primary key
        constraint df_clock_row default 1 constraint ck_clock_row check (only_row = 1),
    latest   datetime2(6) not null constraint df_clock_latest default sysutcdatetime(),
    -- How far what is to come was looked at, where that is too much for one look.
    looked_to datetime2(6) null
);
insert into changefeed.clock default values;
GO

-- Writes down the time if it is far ahead of what was last seen. Called by whatever puts something off
-- or holds it: should that be a step of the clock which is taken back before anybody looks, the next
-- look finds it all the same.
create procedure changefeed.note_time
as
begin
    set nocount on;
    declare @now datetime2(6) = sysutcdatetime();
    if exists (select 1 from changefeed.clock c with (readuncommitted)
               where c.latest < dateadd(second, -15, @now))
        update changefeed.clock with (updlock, rowlock) set latest = @now
        where latest < dateadd(second, -15, @now);
end;
GO

-- Looks whether the clock was set back, and if so, brings back what lies ahead only because of that:
-- events and rows that are due, and leases of owners that may be dead, would wait for as long as the
-- step was. Says how far back the clock went to whoever noticed. Any number may call it at the same
-- time, and again when it is unknown whether it was done.
--
-- A step forward that was taken back before a look leaves events that were captured at times that are
-- still to come. They are looked for among all that is to come, a part at each look.
create procedure changefeed.keep_time @stepped_seconds int output
as
begin
    set nocount on;
    set xact_abort on;
    set rowcount 0;
    set implicit_transactions off;
    declare @now datetime2(6) = sysutcdatetime();
    declare @latest datetime2(6), @far datetime2(6), @rows nvarchar(max);
    declare @looked_to datetime2(6), @soon datetime2(6), @trigger int = -2147483648, @next datetime2(6);
    declare @ahead table (change_id bigint not null primary key, due_at datetime2(6) not null, astray bit not null);
    set @stepped_seconds = null;
    select @latest = c.latest from changefeed.clock c;
    if @now between dateadd(second, -5, @latest) and dateadd(second, 10, @latest) return;
    begin transaction;
    -- One at a time. The others wait here, and find that it is done.
    update changefeed.clock with (updlock, rowlock) set latest = latest;
    select @latest = c.latest, @looked_to = c.looked_to, @now = sysutcdatetime() from changefeed.clock c;
    if @now < dateadd(second, -5, @latest)
    begin
        set @stepped_seconds = datediff(second, @now, @latest);
        -- What is held since the step, is held for less.
        set @far = dateadd(second, @stepped_seconds / 2, @now);
        update changefeed.lease set expires_at = dateadd(second, -@stepped_seconds, expires_at)
        where expires_at > @far;
        update e set due_at = dateadd(second, -@stepped_seconds, e.due_at)
        from changefeed.event_trigger t
        join changefeed.event e on e.trigger_id = t.trigger_id
        where e.due_at > @now and (e.locked_by is null or e.due_at > @far);
        select @rows = string_agg(cast(concat(N'update changefeed.', quotename(o.name), N' set
            _changefeed_lease_expiration_time = case when _changefeed_lease_expiration_time > @far
                then dateadd(second, -@by, _changefeed_lease_expiration_time)
                else _changefeed_lease_expiration_time end,
            _changefeed_retry_time = case when _changefeed_retry_time > @far
                then dateadd(second, -@by, _changefeed_retry_time) else _changefeed_retry_time end
            where _changefeed_lease_expiration_time > @far or _changefeed_retry_time > @far;')
            as nvarchar(max)), N' ')
        from sys.objects o
        where o.schema_id = schema_id(N'changefeed') and o.type = 'U' and o.name like N'leases[_]%';
        if @rows is not null
            exec sp_executesql @rows, N'@far datetime2(6), @by int', @far = @far, @by = @stepped_seconds;
    end;
    set @soon = dateadd(second, 5, @now);
    if @looked_to is null or @looked_to < @soon set @looked_to = @soon;
    while 1 = 1
    begin
        select @trigger = min(t.trigger_id) from changefeed.event_trigger t with (readuncommitted)
        where t.trigger_id > @trigger;
        if @trigger is null break;
        delete from @ahead;
        -- What the application has not committed is not waited for.
        insert into @ahead (change_id, due_at, astray)
        select top (2000) e.change_id, e.due_at,
               case when e.generation = 0 and e.created_at > @soon then 1 else 0 end
        from changefeed.event e with (readcommittedlock, readpast)
        where e.trigger_id = @trigger and e.due_at >= @looked_to and e.due_at is not null
        order by e.due_at, e.change_id;
        if exists (select 1 from @ahead a where a.astray = 1)
            update changefeed.event set due_at = @now
            -- By their keys: a search through all events would wait for writers.
            from (select x.change_id as astray_id from @ahead x where x.astray = 1) h --@sqlserver
            join changefeed.event with (forceseek) on changefeed.event.change_id = h.astray_id --@sqlserver
            where generation = 0 and due_at > @now
              and exists (select 1 from @ahead a where a.change_id = changefeed.event.change_id and a.astray = 1)
            option (loop join, force order) --@sqlserver
            ;
        -- The next look begins behind what this one has reached of every trigger.
        if (select count(*) from @ahead) = 2000
            select @next = case when @next < max(a.due_at) then @next else max(a.due_at) end from @ahead a;
    end;
    update changefeed.clock set latest = @now, looked_to = dateadd(microsecond, 1, @next);
    commit;
end;
GO

--@babelfish grant update on changefeed.change_order to changefeed_admin;
grant select on changefeed.watched_table to changefeed_reader;
grant select on changefeed.watch to changefeed_reader;
grant select on changefeed.global_state to changefeed_reader;
GO
