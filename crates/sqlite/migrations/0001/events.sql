-- Event triggers.
--
-- Database triggers on the application's tables write every event into changefeed_event, in the
-- writer's own transaction, with built-in functions only: the stock sqlite3 shell may write.
-- People read changefeed_event_log and changefeed_event_invocation_logs. Who wants to say more
-- about a transaction than its rows tell writes, within it:
--
--   begin immediate;
--   insert into changefeed_session (session_variables, trace_context)
--     values ('{"x-user":"7"}', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01');
--   update orders set …;
--   delete from changefeed_session;   -- writes both into the events since the insert
--   commit;

-- A row stays when its trigger is dropped, so that its events keep their name and no number is
-- ever given again.
create table changefeed_event_trigger (
  trigger_id     integer not null primary key,
  name           text    not null,
  table_name     text    not null,
  definition     text    not null, -- JSON
  -- Why nothing is delivered at present.
  paused_because text,
  -- What of the definition statements need: how long an event waits for its first attempt, the time from one request
  -- to the next, and how many may follow each other at once.
  wait_ms        integer not null default 0,
  pace_us        integer,
  burst          integer not null default 1,
  -- When the next request was due if all had kept the pace, in microseconds since 1970.
  paced_at       integer not null default 0,
  dropped_at     integer -- milliseconds since 1970
) strict;

create unique index changefeed_event_trigger_name
    on changefeed_event_trigger (name) where dropped_at is null;

-- The feeds that event triggers write to. Differs: a table of its own, because SQLite cannot
-- widen the check in changefeed_feed_source.
create table changefeed_event_feed (
  feed_id integer not null primary key
) strict;

-- The events. due_at says everything about when something happens next: the time of capture, then
-- the end of a lease, then the time of the next attempt, and null when nothing more will happen.
create table changefeed_event (
  change_id   integer not null primary key,
  trigger_id  integer not null,
  op          text    not null,             -- I, U, D or M
  state       text    not null default 'p', -- pending, delivered, error, archived, collapsed
  superseded_by integer,                    -- the event that was delivered for a collapsed one
  due_at      integer,                      -- milliseconds since 1970
  tries       integer not null default 0,
  cut_off     integer not null default 0,   -- those of the tries whose end nobody knows
  generation  integer not null default 0,   -- grows with every change of hands
  lease_owner text,
  order_key   text,                         -- null where order does not matter
  feed_id     integer,
  shard       integer,
  created_at  integer not null,             -- milliseconds since 1970
  -- What its id has besides the change_id, which a database that was restored from a backup gives
  -- again to another event.
  bits        integer not null default (random()),
  session_variables text,
  trace_context     text,
  old         text,
  new         text
) strict;

-- What is to be done, in its order; within the same moment by change_id, which ends every index
-- entry. Finished events are in none of these three indexes, so a long log makes nothing slower.
create index changefeed_event_due
    on changefeed_event (trigger_id, due_at) where due_at is not null;

create index changefeed_event_order
    on changefeed_event (trigger_id, order_key)
    where state = 'p' and order_key is not null;

create index changefeed_event_leased
    on changefeed_event (trigger_id, due_at) where lease_owner is not null;

-- What is done. Delivery pays for this one, not the writer.
create index changefeed_event_done
    on changefeed_event (trigger_id, state) where due_at is null;

create table changefeed_event_attempt (
  attempt_id  integer not null primary key,
  change_id   integer not null,
  generation  integer not null, -- the event's, when the attempt was made
  number      integer not null,
  outcome     text    not null, -- success, failure or unknown
  status      integer,
  request     text,
  response    text,
  error       text,
  duration_ms integer not null,
  late        integer not null,
  created_at  integer not null -- milliseconds since 1970
) strict;

create unique index changefeed_event_attempt_event
    on changefeed_event_attempt (change_id, generation);

-- Events by hand that were asked for, by the key of the request: one that is repeated because its
-- answer was lost makes no second event.
create table changefeed_event_request (
  key        text    not null primary key,
  change_id  integer not null,
  bits       integer not null,
  created_at integer not null -- milliseconds since 1970
) strict;

create index changefeed_event_request_created on changefeed_event_request (created_at);

-- How far the existing rows of a table were made into events: the key of the last of them.
create table changefeed_event_backfill (
  trigger_id integer not null primary key,
  total      integer not null,
  done       integer not null default 0,
  finished   integer not null default 0,
  key1 any, key2 any, key3 any, key4 any, key5 any, key6 any, key7 any, key8 any
) strict;

create trigger changefeed_feed_delete_events after delete on changefeed_feed
begin
  delete from changefeed_event_feed where feed_id = old.feed_id;
end;

-- An event that belongs to a feed takes its next number. Where somebody deleted the feed or its
-- shard by SQL the event is in the log all the same: the application's write must not fail.
create trigger changefeed_event_publish after insert on changefeed_event
when new.feed_id is not null
begin
  insert into changefeed_numbered (feed_id, shard, change_sequence_number, change_id)
  select d.feed_id, d.shard,
         1 + max(d.start, d.trimmed,
                 coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                            where n.feed_id = new.feed_id and n.shard = new.shard), 0)),
         new.change_id
    from changefeed_event_feed f
    join changefeed_shard_def d on d.feed_id = f.feed_id and d.shard = new.shard
   where f.feed_id = new.feed_id;
end;

create trigger changefeed_event_delete after delete on changefeed_event
begin
  delete from changefeed_event_attempt where change_id = old.change_id;
end;

-- Where triggers put events that come by a condition; not for reading.
create view changefeed_captured_event
  (trigger_id, op, old, new, order_key, feed_id, shard) as
  select trigger_id, op, old, new, order_key, feed_id, shard from changefeed_event;

create trigger changefeed_captured_event_insert instead of insert on changefeed_captured_event
begin
  update changefeed_change_id set value = value + 1;
  insert into changefeed_event
    (change_id, trigger_id, op, old, new, order_key, feed_id, shard, created_at, due_at)
  values ((select value from changefeed_change_id), new.trigger_id, new.op, new.old, new.new,
          new.order_key, new.feed_id, new.shard,
          cast((julianday('now') - 2440587.5) * 86400000.0 as integer),
          cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
          + coalesce((select wait_ms from changefeed_event_trigger
                       where trigger_id = new.trigger_id), 0));
end;

-- Events by hand, in the transaction of whoever writes here:
--   insert into changefeed_invoke (trigger_name, payload) values ('mail', '{"to": 7}');
-- Differs: nobody is granted this. Whoever can write the file can write the log as well.
create view changefeed_invoke (trigger_name, payload) as
  select name, null from changefeed_event_trigger
   where dropped_at is null and json_extract(definition, '$.manual') = 1;

create trigger changefeed_invoke_insert instead of insert on changefeed_invoke
begin
  select raise(abort, 'changefeed: there is no event trigger of this name that takes events by hand; create it with --manual')
   where not exists (select 1 from changefeed_invoke where trigger_name = new.trigger_name);
  select raise(abort, 'changefeed: the payload of an event must be JSON')
   where new.payload is not null and not json_valid(new.payload);
  insert into changefeed_captured_event (trigger_id, op, new, order_key, feed_id, shard)
  select t.trigger_id, 'M', coalesce(new.payload, '{}'),
         case when json_extract(t.definition, '$.in_order') <> 0 then 'manual' end,
         (select f.feed_id from changefeed_feed f where f.name = json_extract(t.definition, '$.feed')), 0
    from changefeed_event_trigger t
   where t.name = new.trigger_name and t.dropped_at is null;
end;

-- What a transaction says about itself. It is written into the events when the transaction says
-- that it is done, and not while they are captured: so a writer that forgets to say so loses its
-- own words, but they can never turn up in the events of somebody else.
create table changefeed_session_open (
  only_row integer not null primary key default 1 check (only_row = 1),
  since    integer not null, -- the newest change_id before
  session_variables text,
  trace_context     text
) strict;

create view changefeed_session (session_variables, trace_context) as
  select session_variables, trace_context from changefeed_session_open;

create trigger changefeed_session_insert instead of insert on changefeed_session
begin
  select raise(abort, 'changefeed: session_variables must be a JSON object')
   where new.session_variables is not null
     and (not json_valid(new.session_variables)
          or case when json_valid(new.session_variables)
                  then json_type(new.session_variables) end is not 'object');
  -- One that was left open by a writer who forgot to close it.
  delete from changefeed_session_open;
  insert into changefeed_session_open (since, session_variables, trace_context)
  select value, new.session_variables,
         case when new.trace_context is null then null
              when case when json_valid(new.trace_context)
                        then json_type(new.trace_context) end is 'object'
              then new.trace_context
              else json_object('traceparent', new.trace_context || '') end
    from changefeed_change_id;
end;

create trigger changefeed_session_delete instead of delete on changefeed_session
begin
  update changefeed_event
     set session_variables = old.session_variables, trace_context = old.trace_context
   where change_id > (select since from changefeed_session_open)
     and state = 'p' and tries = 0;
  delete from changefeed_session_open;
end;

-- What people read.
create view changefeed_event_log
  (id, change_id, trigger_name, schema_name, table_name, op, old, new, session_variables,
   trace_context, created_at, delivered, error, tries, locked_by, locked_until, next_retry_at,
   archived, superseded_by) as
  select printf('%08x-%04x-8%03x-8%03x-%012x', e.change_id >> 28, (e.change_id >> 12) & 65535,
                e.change_id & 4095, (e.bits >> 48) & 4095, e.bits & 281474976710655),
         e.change_id, t.name, 'main', t.table_name,
         case e.op when 'I' then 'INSERT' when 'U' then 'UPDATE' when 'D' then 'DELETE'
                   else 'MANUAL' end,
         e.old, e.new, e.session_variables, e.trace_context,
         strftime('%Y-%m-%dT%H:%M:%fZ', e.created_at / 1000.0, 'unixepoch'),
         e.state = 'd', e.state = 'e', e.tries,
         e.lease_owner,
         case when e.lease_owner is not null
              then strftime('%Y-%m-%dT%H:%M:%fZ', e.due_at / 1000.0, 'unixepoch') end,
         case when e.lease_owner is null
              then strftime('%Y-%m-%dT%H:%M:%fZ', e.due_at / 1000.0, 'unixepoch') end,
         e.state = 'a', e.superseded_by
    from changefeed_event e
    join changefeed_event_trigger t on t.trigger_id = e.trigger_id;

create view changefeed_event_invocation_logs
  (id, event_id, trigger_name, status, request, response, created_at, attempt, outcome, late,
   error, duration_ms) as
  select a.attempt_id,
         printf('%08x-%04x-8%03x-8%03x-%012x', a.change_id >> 28, (a.change_id >> 12) & 65535,
                a.change_id & 4095, (e.bits >> 48) & 4095, e.bits & 281474976710655),
         t.name, a.status, a.request, a.response,
         strftime('%Y-%m-%dT%H:%M:%fZ', a.created_at / 1000.0, 'unixepoch'),
         a.number, a.outcome, a.late, a.error, a.duration_ms
    from changefeed_event_attempt a
    join changefeed_event e on e.change_id = a.change_id
    join changefeed_event_trigger t on t.trigger_id = e.trigger_id;
