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
    -- p pending, d delivered, e given up, a archived because its trigger was dropped
    state             char(1) not null constraint df_event_state default 'p',
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
       convert(bit, case when e.state = 'a' then 1 else 0 end) as archived
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
