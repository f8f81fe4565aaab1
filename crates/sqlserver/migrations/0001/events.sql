-- changefeed: event triggers on SQL Server 2017 and later, Azure SQL, and Babelfish for PostgreSQL.
--
-- What users see: event_trigger, event_log, event_invocation_logs, and two values of the session
-- that a writer may set with sp_set_session_context: changefeed.session_variables and
-- changefeed.trace_context. The rest is how it works.
--
--   1. A trigger of ours in the schema of the table writes rows of `event` in the writer's own
--      transaction. It may do so because table, trigger and this schema have one owner; writers
--      need no right on anything here.
--   2. A dispatcher claims events that are due (`due_at`), for the time of a lease, delivers them,
--      and writes down every attempt together with what follows from it.
--
-- One column, `due_at`, says everything about when: at capture it is now; while somebody holds the
-- event it is the end of the lease, so that an expired lease is simply due again; after a failure
-- it is the next attempt; and null means that nothing more will happen by itself.

create sequence changefeed.event_trigger_id as int start with 1 increment by 1;
GO

create table changefeed.event_trigger (
    trigger_id     int not null constraint pk_event_trigger primary key
        constraint df_event_trigger_id default next value for changefeed.event_trigger_id,
    -- Names that differ in case are different names, and sort as they do elsewhere.
    name           varchar(100) collate Latin1_General_BIN2 not null,
    -- The table by its number, which stays when it is renamed; the names are those it had last.
    table_id       int not null,
    schema_name    sysname not null,
    table_name     sysname not null,
    -- What a person wrote, as JSON.
    definition     nvarchar(max) not null,
    -- The numbers of the table's columns, so that a renamed one is found.
    [columns]      nvarchar(max) not null,
    -- The database trigger as it was made last; null if there is none.
    capture_sql    nvarchar(max) null,
    -- No foreign key: see event_feed_guard.
    feed_id        smallint null,
    paused_because nvarchar(max) null,
    -- What of the definition statements need: how long an event waits for its first attempt, and the time from one
    -- request to the next with how many may follow each other at once.
    wait_ms        bigint not null constraint df_event_trigger_wait default 0,
    pace_us        bigint null,
    burst          int not null constraint df_event_trigger_burst default 1,
    -- When the next request was due if all had kept the pace. It is moved with what is taken, so that an instance
    -- that stops holds no more of the rate than it has taken.
    paced_at       datetime2(6) null,
    created_at     datetime2(6) not null constraint df_event_trigger_created default sysutcdatetime(),
    updated_at     datetime2(6) not null constraint df_event_trigger_updated default sysutcdatetime(),
    -- The row of a dropped trigger stays: its events are still in the log.
    dropped_at     datetime2(6) null,
    constraint ck_event_trigger_name check (name like '[A-Za-z]%' and patindex('%[^a-zA-Z0-9_-]%', name) = 0)
);
create unique index ix_event_trigger_name on changefeed.event_trigger (name) where dropped_at is null;
GO

-- No identity: what our triggers insert must not change the @@identity of the application.
create table changefeed.event (
    change_id         bigint not null constraint pk_event primary key
        constraint df_event_change_id default next value for changefeed.change_id,
    created_at        datetime2(6) not null constraint df_event_created default sysutcdatetime(),
    due_at            datetime2(6) null constraint df_event_due default sysutcdatetime(),
    trigger_id        int not null,
    -- How often it has changed hands; whatever is written about it must match.
    generation        int not null constraint df_event_generation default 0,
    -- Attempts, and how many of them a crash has cut off.
    tries             smallint not null constraint df_event_tries default 0,
    cut_off           smallint not null constraint df_event_cut_off default 0,
    -- p pending, d delivered, e given up, a archived because its trigger was dropped, c collapsed into a
    -- later event of its key
    state             char(1) not null constraint df_event_state default 'p',
    -- That event.
    superseded_by     bigint null,
    -- I insert, U update, D delete, M by hand
    op                char(1) not null,
    -- Events of one key are delivered one after the other; a hash, because equal is all that
    -- matters, and two keys that share one merely wait for each other.
    order_key         bigint null,
    -- The feed that it also enters, and the shard there. Only in this feed it is read: whoever may
    -- publish can enter any change_id into any feed.
    feed_id           smallint null,
    shard             smallint null,
    -- What its id has besides the change_id, which a database that was restored from a backup gives
    -- again to another event.
    bits              bigint not null constraint df_event_bits
        default convert(bigint, convert(binary(8), substring(convert(binary(16), newid()), 9, 8))),
    locked_by         nvarchar(400) null,
    session_variables nvarchar(max) null,
    trace_context     nvarchar(max) null,
    old               nvarchar(max) null,
    new               nvarchar(max) null
);
-- A batch must never lock out the writers of the application.
alter table changefeed.event set (lock_escalation = disable); --@sqlserver
-- Nothing is included: who looks for due events must lock the rows themselves, not only entries of
-- an index, or it would meet those who finish them in the wrong order.
create index ix_event_due on changefeed.event (trigger_id, due_at, change_id)
    where due_at is not null;
create index ix_event_order on changefeed.event (trigger_id, order_key, change_id)
    where due_at is not null;
create index ix_event_dead on changefeed.event (trigger_id, change_id) where state = 'e';
-- What is finished, by age, for cleaning up. Delivery pays for this one, not the writer of the application.
create index ix_event_finished on changefeed.event (trigger_id, created_at) where state <> 'p';
GO

create table changefeed.event_attempt (
    change_id   bigint not null,
    -- The event's, when the attempt was made: one attempt, one row, however often it is told.
    generation  int not null,
    trigger_id  int not null,
    attempt     int not null,
    outcome     varchar(10) not null
        constraint ck_event_attempt_outcome check (outcome in ('success', 'failure', 'unknown')),
    -- The sender had lost the event to somebody else: the attempt decided nothing.
    late        bit not null constraint df_event_attempt_late default 0,
    status      smallint null,
    request     nvarchar(max) null,
    response    nvarchar(max) null,
    error       nvarchar(max) null,
    duration_ms bigint not null constraint df_event_attempt_duration default 0,
    created_at  datetime2(6) not null constraint df_event_attempt_created default sysutcdatetime(),
    constraint pk_event_attempt primary key (change_id, generation)
);
alter table changefeed.event_attempt set (lock_escalation = disable); --@sqlserver
GO

-- Events by hand that were asked for, by the key of the request: one that is repeated because its
-- answer was lost makes no second event.
create table changefeed.event_request (
    request_key uniqueidentifier not null constraint pk_event_request primary key,
    change_id   bigint not null,
    bits        bigint not null,
    created_at  datetime2(6) not null constraint df_event_request_created default sysutcdatetime()
);
create index ix_event_request_created on changefeed.event_request (created_at);
GO

-- How far the existing rows of a table have become events.
create table changefeed.event_backfill (
    trigger_id  int not null constraint pk_event_backfill primary key,
    -- The key of the last row done, as a JSON array of texts.
    last_key    nvarchar(max) null,
    done        bigint not null constraint df_event_backfill_done default 0,
    total       bigint not null,
    finished_at datetime2(3) null
);
GO

-- The id of an event: a UUID of version 8 made of its change_id and 60 of its random bits.
create function changefeed.event_id (@change_id bigint, @bits bigint) returns uniqueidentifier as
begin
    declare @number varchar(18) = changefeed.hex(convert(binary(8), @change_id)),
            @random varchar(18) = changefeed.hex(convert(binary(8), @bits));
    return convert(uniqueidentifier, concat(
        substring(@number, 4, 8), '-', substring(@number, 12, 4), '-8', substring(@number, 16, 3),
        '-8', substring(@random, 4, 3), '-', substring(@random, 7, 12)));
end;
GO

-- What a writer said as JSON: as it is if it is an object or an array, and otherwise as a JSON
-- string, because a writer may say anything.
create function changefeed.setting_json (@setting nvarchar(max)) returns nvarchar(max) as
begin
    if @setting is null or isjson(@setting) = 1 return @setting;
    return concat(N'"', string_escape(@setting, 'json'), N'"');
end;
GO

-- A trace as an object: a writer may have said that, or only a traceparent.
create function changefeed.trace_json (@setting nvarchar(max)) returns nvarchar(max) as
begin
    if @setting is null or (isjson(@setting) = 1 and left(ltrim(@setting), 1) = N'{') return @setting;
    return concat(N'{"traceparent":"', string_escape(replace(@setting, N'"', N''), 'json'), N'"}');
end;
GO

-- OPENJSON of Babelfish leaves the escapes of texts as they are, and its REPLACE takes a backslash
-- that it puts in for half of one.
--@babelfish create function changefeed.json_plain (@escaped nvarchar(max)) returns nvarchar(max) as
--@babelfish begin
--@babelfish     return replace(replace(replace(replace(replace(replace(@escaped, N'\\', nchar(1)),
--@babelfish         N'\"', N'"'), N'\n', nchar(10)), N'\r', nchar(13)), N'\t', nchar(9)), nchar(1), N'\\');
--@babelfish end;
GO

create view changefeed.event_log as
select changefeed.event_id(e.change_id, e.bits) as id,
       e.change_id,
       t.name as trigger_name,
       t.schema_name,
       t.table_name,
       case e.op when 'I' then 'INSERT' when 'U' then 'UPDATE' when 'D' then 'DELETE'
                 else 'MANUAL' end as op,
       e.old, e.new,
       changefeed.setting_json(e.session_variables) as session_variables,
       changefeed.trace_json(e.trace_context) as trace_context,
       e.created_at,
       convert(bit, case when e.state = 'd' then 1 else 0 end) as delivered,
       convert(bit, case when e.state = 'e' then 1 else 0 end) as error,
       convert(int, e.tries) as tries,
       e.locked_by,
       case when e.locked_by is not null then e.due_at end as locked_until,
       case when e.locked_by is null then e.due_at end as next_retry_at,
       convert(bit, case when e.state = 'a' then 1 else 0 end) as archived,
       e.superseded_by
from changefeed.event e
join changefeed.event_trigger t on t.trigger_id = e.trigger_id;
GO

create view changefeed.event_invocation_logs as
select concat(changefeed.event_id(a.change_id, e.bits), '-', a.generation) as id,
       changefeed.event_id(a.change_id, e.bits) as event_id, a.change_id,
       t.name as trigger_name, convert(int, a.status) as status, a.request, a.response,
       a.created_at, a.attempt, a.outcome, a.late, a.error, a.duration_ms
from changefeed.event_attempt a
join changefeed.event e on e.change_id = a.change_id
join changefeed.event_trigger t on t.trigger_id = a.trigger_id;
GO

-- When an event of a trigger that is made now is due for the first time.
create view changefeed.event_due as
select t.trigger_id,
       dateadd(millisecond, convert(int, t.wait_ms % 1000),
               dateadd(second, convert(int, t.wait_ms / 1000), sysutcdatetime())) as first_due
from changefeed.event_trigger t;
GO

-- Who may send events by hand in SQL, besides those who may change our tables themselves: see invoke.
create table changefeed.event_invoker (
    trigger_id int not null
        constraint fk_event_invoker_trigger references changefeed.event_trigger (trigger_id) --@sqlserver
    ,
    invoker    nvarchar(128) not null,
    constraint pk_event_invoker primary key (trigger_id, invoker)
);
GO

-- Sends an event by hand in the caller's own transaction: it is delivered if that is committed. The trigger must
-- have been created with --manual.
create procedure changefeed.invoke
    @trigger varchar(100), @payload nvarchar(max) = N'{}', @event_id uniqueidentifier = null output
as
begin
    set nocount on;
    set rowcount 0;
    declare @trigger_id int, @feed_id smallint, @ordered bit, @manual bit, @change_id bigint, @bits bigint;
    declare @variables nvarchar(4000) = coalesce(nullif(try_convert(nvarchar(4000), session_context(N'changefeed.session_variables')), N''),
        nullif(try_convert(nvarchar(4000), session_context(N'hasura.user')), N''));
    declare @trace nvarchar(4000) = coalesce(nullif(try_convert(nvarchar(4000), session_context(N'changefeed.trace_context')), N''),
        nullif(try_convert(nvarchar(4000), session_context(N'hasura.tracecontext')), N''));
    select @trigger_id = t.trigger_id, @feed_id = t.feed_id,
           @manual = case when json_value(t.definition, '$.manual') = 'true' then 1 else 0 end,
           @ordered = case when isnull(json_value(t.definition, '$.in_order'), 'false') <> 'false' then 1 else 0 end
    from changefeed.event_trigger t
    where t.name = @trigger and t.dropped_at is null
      and (has_perms_by_name(N'changefeed.event', N'OBJECT', N'INSERT') = 1
           or exists (select 1 from changefeed.event_invoker i
                      where i.trigger_id = t.trigger_id and (i.invoker = user_name() or is_member(i.invoker) = 1)));
    if @trigger_id is null
        throw 55403, 'changefeed: there is no such event trigger, or you may not send events of it by hand; its owner can allow it with changefeed.grant_invoke', 1;
    if @manual = 0
        throw 55404, 'changefeed: this event trigger takes no events by hand; create it with --manual', 1;
    if isjson(isnull(@payload, N'{}')) = 0
        throw 55405, 'changefeed: the payload of an event must be JSON', 1;
    set @change_id = next value for changefeed.change_id;
    set @bits = convert(bigint, convert(binary(8), substring(convert(binary(16), newid()), 9, 8)));
    insert into changefeed.event (change_id, trigger_id, op, new, session_variables, trace_context, order_key, bits,
                                  feed_id, shard, due_at)
    select @change_id, @trigger_id, 'M', isnull(@payload, N'{}'), @variables, @trace,
           case when @ordered = 1 then @change_id end, @bits, @feed_id, 0, d.first_due
    from changefeed.event_due d where d.trigger_id = @trigger_id;
    if @feed_id is not null
        insert into changefeed.change (feed_id, shard, change_id) values (@feed_id, 0, @change_id);
    set @event_id = changefeed.event_id(@change_id, @bits);
end;
GO

-- Lets a user or a role send events of a trigger by hand. For whoever may grant rights on the schema.
create procedure changefeed.grant_invoke @trigger varchar(100), @invoker nvarchar(128)
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @trigger_id int = (select t.trigger_id from changefeed.event_trigger t
                               where t.name = @trigger and t.dropped_at is null);
    declare @grant nvarchar(max) = concat(N'grant execute on changefeed.invoke to ', quotename(@invoker));
    if @trigger_id is null
        throw 55406, 'changefeed: there is no such event trigger', 1;
    exec sys.sp_executesql @grant;
    insert into changefeed.event_invoker (trigger_id, invoker)
    select @trigger_id, @invoker
    where not exists (select 1 from changefeed.event_invoker i
                      where i.trigger_id = @trigger_id and i.invoker = @invoker);
end;
GO

-- Takes it back.
create procedure changefeed.revoke_invoke @trigger varchar(100), @invoker nvarchar(128)
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    delete i from changefeed.event_invoker i
    join changefeed.event_trigger t on t.trigger_id = i.trigger_id
    where t.name = @trigger and t.dropped_at is null and i.invoker = @invoker;
end;
GO

-- A database trigger whose feed is gone would fail the application's writes.
create trigger changefeed.event_feed_guard on changefeed.feed after delete as
begin
    set nocount on;
    if exists (select 1 from deleted d join changefeed.event_trigger t on t.feed_id = d.feed_id
               where t.dropped_at is null)
        throw 55401, 'changefeed: an event trigger writes to this feed; drop the event trigger first, or replace it by one without a feed', 1;
    update changefeed.event_trigger set feed_id = null
    where feed_id in (select d.feed_id from deleted d);
end;
GO

-- The same for a shard.
create trigger changefeed.event_shard_guard on changefeed.shard after delete as
begin
    set nocount on;
    if exists (select 1 from deleted d join changefeed.event_trigger t on t.feed_id = d.feed_id
               where t.dropped_at is null)
        throw 55401, 'changefeed: an event trigger writes to this feed; drop the event trigger first, or replace it by one without a feed', 1;
end;
GO

-- A database trigger whose definition is gone would not know what it captures for.
create trigger changefeed.event_trigger_guard on changefeed.event_trigger after delete as
begin
    set nocount on;
    if exists (select 1 from deleted d where d.dropped_at is null)
        throw 55402, 'changefeed: an event trigger must be dropped, not deleted; use `changefeed trigger drop`', 1;
end;
GO

--@babelfish grant update on changefeed.event_trigger_id to changefeed_admin;
grant select on changefeed.event_trigger to changefeed_reader;
grant select on changefeed.event to changefeed_reader;
grant select on changefeed.event_attempt to changefeed_reader;
grant select on changefeed.event_backfill to changefeed_reader;
grant select on changefeed.event_log to changefeed_reader;
-- On SQL Server whoever may read a view needs no right on what it uses in turn.
--@babelfish grant execute on changefeed.event_id to changefeed_reader;
--@babelfish grant execute on changefeed.setting_json to changefeed_reader;
--@babelfish grant execute on changefeed.trace_json to changefeed_reader;
grant select on changefeed.event_invocation_logs to changefeed_reader;
GO
