CREATE UNIQUE INDEX changefeed_event_attempt_event
    on changefeed_event_attempt (change_id, generation);
CREATE INDEX changefeed_event_done
    on changefeed_event (trigger_id, state) where due_at is null;
CREATE INDEX changefeed_event_due
    on changefeed_event (trigger_id, due_at) where due_at is not null;
CREATE INDEX changefeed_event_leased
    on changefeed_event (trigger_id, due_at) where lease_owner is not null;
CREATE INDEX changefeed_event_order
    on changefeed_event (trigger_id, order_key)
    where state = 'p' and order_key is not null;
CREATE INDEX changefeed_event_request_created on changefeed_event_request (created_at);
CREATE UNIQUE INDEX changefeed_event_trigger_name
    on changefeed_event_trigger (name) where dropped_at is null;
CREATE INDEX changefeed_staged_batch on changefeed_staged (owner, batch);
CREATE TABLE changefeed_access_token (
  token_id   text    not null primary key
             check (length(token_id) = 12 and token_id not glob '*[^a-z0-9]*'),
  name       text    not null check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  digest     blob    not null check (length(digest) = 32),
  -- What it allows, with spaces in between: read:FEED, read, operate, administer.
  scopes     text    not null check (scopes <> ''),
  created_at integer not null, -- milliseconds since 1970
  expires_at integer,
  -- A token that was taken back stays: as long as there was one, nobody gets in without.
  revoked_at integer
) strict, without rowid;
CREATE TABLE changefeed_backfill (
  feed_id  integer not null primary key,
  total    integer not null,
  done     integer not null default 0,
  finished integer not null default 0,
  key1 any, key2 any, key3 any, key4 any, key5 any, key6 any, key7 any, key8 any
) strict;
CREATE TABLE changefeed_change_id (
  only_row integer not null primary key default 1 check (only_row = 1),
  value    integer not null
) strict;
CREATE TABLE changefeed_clock (
  only_row integer not null primary key default 1 check (only_row = 1),
  latest   integer not null default 0 -- milliseconds since 1970
) strict;
CREATE TABLE changefeed_consumer (
  name    text    not null,
  feed_id integer not null,
  shard   integer not null,
  cursor  text    not null,
  updated_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  primary key (name, feed_id, shard)
) strict, without rowid;
CREATE TABLE changefeed_event (
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
CREATE TABLE changefeed_event_attempt (
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
CREATE TABLE changefeed_event_backfill (
  trigger_id integer not null primary key,
  total      integer not null,
  done       integer not null default 0,
  finished   integer not null default 0,
  key1 any, key2 any, key3 any, key4 any, key5 any, key6 any, key7 any, key8 any
) strict;
CREATE TABLE changefeed_event_feed (
  feed_id integer not null primary key
) strict;
CREATE TABLE changefeed_event_request (
  key        text    not null primary key,
  change_id  integer not null,
  bits       integer not null,
  created_at integer not null -- milliseconds since 1970
) strict;
CREATE TABLE changefeed_event_trigger (
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
CREATE TABLE changefeed_feed (
  feed_id integer not null primary key check (feed_id between -32768 and 32767),
  name    text    not null unique check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  comment text,
  -- How long its changes are kept after they got their numbers, in milliseconds: those that every consumer has
  -- read, and those that some consumer has not read. For ever where it is null.
  trim_after_ms        integer check (trim_after_ms >= 0),
  trim_unread_after_ms integer check (trim_unread_after_ms >= trim_after_ms)
) strict;
CREATE TABLE changefeed_feed_source (
  feed_id  integer not null primary key,
  kind     text    not null check (kind in ('captured', 'joined')),
  table_schema text,
  table_name   text not null,
  change_id_column text,
  shard_by text,
  -- How many shards the rows are spread over, from which one on; shards added by hand later get none of them.
  shards   integer not null,
  first_shard integer not null default 0,
  -- Whether its changes keep the row before and after.
  images   integer not null default 0,
  -- Which rows are in it, as the condition was written, and which columns are in its images, as a JSON array.
  condition text,
  columns  text,
  -- The primary key of a captured table as a JSON array of names. A table that is rebuilt with another key cannot
  -- be captured any further: the keys of its changes would not be of one kind.
  key_names text
) strict;
CREATE TABLE changefeed_global_state (
  function_id       text    not null,
  table_id          integer not null,
  -- Every change up to this version has been processed or parked. Kept about once a second.
  last_sync_version integer not null default 0,
  last_access_time  integer not null, -- milliseconds since 1970
  primary key (function_id, table_id)
) strict, without rowid;
CREATE TABLE changefeed_incarnation (
  number      integer not null primary key,
  incarnation text    not null
) strict;
CREATE TABLE changefeed_incident (
  feed_id     text    not null,
  shard_id    integer not null,
  count       integer not null,
  reported_at integer, -- milliseconds since 1970
  primary key (feed_id, shard_id)
) strict, without rowid;
CREATE TABLE changefeed_instance (
  name       text    not null primary key,
  -- sweep, deliver, watch, push, http, with spaces in between.
  roles      text    not null,
  -- Where its HTTP server listens.
  address    text,
  version    text    not null,
  -- What it has done since it was started, as JSON.
  tallies    text    not null default '{}',
  started_at integer not null, -- milliseconds since 1970
  seen_at    integer not null
) strict, without rowid;
CREATE TABLE changefeed_lease (
  name       text    not null primary key,
  owner      text, -- null once it was given back
  generation integer not null,
  renewal    integer not null default 1, -- grows whenever it is granted or renewed
  ttl        integer not null default 0, -- milliseconds
  expires_at integer not null -- milliseconds since 1970
) strict, without rowid;
CREATE TABLE changefeed_numbered (
  feed_id   integer not null,
  shard     integer not null,
  change_sequence_number integer not null,
  change_id integer not null,
  op        text,
  key1 any, key2 any, key3 any, key4 any, key5 any, key6 any, key7 any, key8 any,
  old       text,
  new       text,
  primary key (feed_id, shard, change_sequence_number)
) strict, without rowid;
CREATE TABLE changefeed_progress (
  feed_id   integer not null,
  shard     integer not null,
  change_sequence_number integer not null,
  marked_at integer not null, -- milliseconds since 1970
  primary key (feed_id, shard, change_sequence_number)
) strict, without rowid;
CREATE TABLE changefeed_schema (
  version  integer not null,
  checksum text    not null -- of the text of the migration: one that was changed afterwards is noticed
) strict;
CREATE TABLE changefeed_session_open (
  only_row integer not null primary key default 1 check (only_row = 1),
  since    integer not null, -- the newest change_id before
  session_variables text,
  trace_context     text
) strict;
CREATE TABLE changefeed_shard_def (
  feed_id     integer not null,
  shard       integer not null check (shard between -32768 and 32767),
  sweep_group integer not null check (sweep_group between -32768 and 32767),
  longpoll    integer not null,
  -- The number before the first; what is older than the feed may be put at or below it.
  start       integer not null check (start >= 0),
  -- Everything up to here was trimmed.
  trimmed     integer not null default 0,
  -- The newest backfilled number while a backfill is at work. Readers below the start stop
  -- here, or they would jump over what is still to come.
  frontier    integer,
  -- How often the number of shards had been changed when this one was made, and whether it was changed again: then
  -- nothing is added to this one.
  generation  integer not null default 0,
  closed      integer not null default 0,
  primary key (feed_id, shard)
) strict, without rowid;
CREATE TABLE changefeed_shard_ulid (
  feed_id   text    not null check (length(feed_id) = 36 and feed_id = lower(feed_id)),
  shard_id  integer not null,
  time      integer not null, -- milliseconds since 1970
  ulid_high blob    not null check (length(ulid_high) = 8),
  ulid_low  integer not null,
  primary key (feed_id, shard_id)
) strict, without rowid;
CREATE TABLE changefeed_staged (
  owner     integer not null,
  batch     integer not null, -- one for each row that a statement is about to write
  at        real    not null, -- SQLite keeps `now` for the time of a statement
  -- 1 in its table as far as told, 2 gone, 0 told to be gone, -1 the same and its place taken by
  -- another row; null is a mark.
  live      integer,
  id1 any, id2 any, id3 any, id4 any, id5 any, id6 any, id7 any, id8 any,
  shard     integer,
  key1 any, key2 any, key3 any, key4 any, key5 any, key6 any, key7 any, key8 any,
  old       text,
  order_key text,
  wanted    integer
) strict;
CREATE TABLE changefeed_subscription (
  name       text    not null primary key check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  feed_id    integer not null,
  definition text    not null, -- what it pushes where, as JSON
  paused     text,             -- why
  created_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) strict, without rowid;
CREATE TABLE changefeed_subscription_parked (
  name      text    not null,
  shard     integer not null,
  epoch     integer not null,
  cursor    text    not null,
  reason    text    not null,
  parked_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  primary key (name, shard, epoch, cursor)
) strict, without rowid;
CREATE TABLE changefeed_subscription_shard (
  name       text    not null,
  shard      integer not null,
  -- The lease's generation: an older one cannot move the position.
  generation integer not null default 0,
  -- Raised when a person has it begin elsewhere; part of message ids.
  epoch      integer not null default 0,
  held       text, -- what the sink held of this epoch when the position was stored
  stopped    text, -- why
  sent       integer not null default 0,
  lost       integer not null default 0,
  parked     integer not null default 0,
  failing_since integer, -- milliseconds since 1970: since when its sink takes nothing
  failure    text, -- why
  primary key (name, shard)
) strict, without rowid;
CREATE TABLE changefeed_ulid_limit (
  only_row           integer not null primary key default 1 check (only_row = 1),
  ahead_milliseconds integer not null default 60000 check (ahead_milliseconds >= 0)
) strict;
CREATE TABLE changefeed_ulid_open (
  feed_id   text    not null,
  shard_id  integer not null,
  time      integer not null,
  -- Where it began, and what was drawn last.
  low       integer,
  drawn_low integer,
  drawn     integer not null default 0,
  open      integer not null default 0 references changefeed_ulid_limit deferrable initially deferred,
  primary key (feed_id, shard_id)
) strict, without rowid;
CREATE TABLE changefeed_ulid_probe (
  id     integer primary key,
  parent integer references changefeed_ulid_probe on delete cascade
) strict;
CREATE TABLE changefeed_ulid_source (
  feed_id      integer not null primary key,
  ulid_feed    text    not null check (length(ulid_feed) = 36 and ulid_feed = lower(ulid_feed)),
  table_schema text,
  table_name   text    not null,
  shard_column text    not null,
  ulid_column  text    not null
) strict;
CREATE TABLE changefeed_watch (
  name        text    not null primary key
              check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  function_id text    not null unique,
  table_id    integer not null,
  -- What `changefeed serve` runs; null for a function that runs elsewhere.
  definition  text,
  -- Whether it wants to know which columns were changed.
  columns     integer not null default 0,
  -- Whether it wants to know what rows were before.
  before      integer not null default 0,
  -- How many unprocessed changes one worker is good for.
  max_changes_per_worker integer not null default 1000 check (max_changes_per_worker > 0),
  created_at  integer not null -- milliseconds since 1970
) strict, without rowid;
CREATE TABLE changefeed_watch_counter (
  only_row   integer not null primary key default 1 check (only_row = 1),
  version    integer not null default 0,
  generation integer not null default 0
) strict;
CREATE TABLE changefeed_watched_table (
  table_id   integer not null primary key,
  -- As it was when tracking began; the triggers follow a renamed table.
  table_name text    not null,
  -- The primary key that the tables of this table were made for: a JSON array of names.
  key        text    not null,
  -- What else the triggers were made for, so that whoever runs sees that they have to be made anew.
  shape      text    not null default '',
  -- Whether the columns that were changed are noted, because some function wants to know them.
  columns    integer not null default 0,
  -- Whether rows are noted as they were before.
  before     integer not null default 0
) strict;
CREATE TABLE changefeed_weight (
  position integer not null primary key,
  weight   integer not null
) strict;
CREATE TRIGGER changefeed_captured_event_insert instead of insert on changefeed_captured_event
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
CREATE TRIGGER changefeed_captured_insert instead of insert on changefeed_captured
begin
  update changefeed_change_id set value = value + 1;
  insert into changefeed_numbered (feed_id, shard, change_sequence_number, change_id,
    op, key1, key2, key3, key4, key5, key6, key7, key8, old, new)
  select d.feed_id, d.shard,
         1 + max(d.start, d.trimmed,
                 coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                            where n.feed_id = new.feed_id and n.shard = new.shard), 0)),
         (select value from changefeed_change_id),
         new.op, new.key1, new.key2, new.key3, new.key4, new.key5, new.key6, new.key7, new.key8,
         new.old, new.new
    from changefeed_shard_def d where d.feed_id = new.feed_id and d.shard = new.shard;
  select raise(abort, 'changefeed: a feed made from this table has lost a shard; drop the feed with `changefeed feed drop`')
   where changes() = 0 and exists (select 1 from changefeed_feed where feed_id = new.feed_id);
end;
CREATE TRIGGER changefeed_change_insert instead of insert on changefeed_change
when new.change_sequence_number is null
begin
  update changefeed_change_id set value = value + 1 where new.change_id is null;
  insert into changefeed_numbered (feed_id, shard, change_sequence_number, change_id)
  select d.feed_id, d.shard,
         1 + max(d.start, d.trimmed,
                 coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                            where n.feed_id = new.feed_id and n.shard = new.shard), 0)),
         coalesce(new.change_id, (select value from changefeed_change_id))
    from changefeed_shard_def d where d.feed_id = new.feed_id and d.shard = new.shard and d.closed = 0;
  select raise(abort, 'changefeed: this shard is closed; the feed goes on in those of the next generation, see changefeed_shard')
    from changefeed_shard_def d
   where changes() = 0 and d.feed_id = new.feed_id and d.shard = new.shard;
  select raise(abort, 'changefeed: this feed has no such shard; insert it into changefeed_shard first')
   where changes() = 0;
end;
CREATE TRIGGER changefeed_change_insert_old instead of insert on changefeed_change
when new.change_sequence_number is not null
begin
  select raise(abort, 'changefeed: this feed has no such shard; insert it into changefeed_shard first')
   where not exists (select 1 from changefeed_shard_def
                      where feed_id = new.feed_id and shard = new.shard);
  select raise(abort, 'changefeed: a change_sequence_number must be a whole number above 0')
   where typeof(new.change_sequence_number) <> 'integer' or new.change_sequence_number < 1;
  select raise(abort, 'changefeed: only numbers up to the start of the shard may be chosen; leave change_sequence_number out to get the next one')
    from changefeed_shard_def
   where feed_id = new.feed_id and shard = new.shard and new.change_sequence_number > start;
  select raise(abort, 'changefeed: changes up to this number were already trimmed')
    from changefeed_shard_def
   where feed_id = new.feed_id and shard = new.shard and new.change_sequence_number <= trimmed;
  select raise(abort, 'changefeed: a backfill of this feed is at work; insert old data before or after it')
    from changefeed_shard_def
   where feed_id = new.feed_id and shard = new.shard and frontier is not null;
  select raise(abort, 'changefeed: this change_sequence_number is taken')
    from changefeed_numbered
   where feed_id = new.feed_id and shard = new.shard
     and change_sequence_number = new.change_sequence_number;
  update changefeed_change_id set value = value + 1 where new.change_id is null;
  insert into changefeed_numbered (feed_id, shard, change_sequence_number, change_id)
  values (new.feed_id, new.shard, new.change_sequence_number,
          coalesce(new.change_id, (select value from changefeed_change_id)));
  select raise(abort, 'changefeed: the change could not be inserted') where changes() = 0;
end;
CREATE TRIGGER changefeed_event_delete after delete on changefeed_event
begin
  delete from changefeed_event_attempt where change_id = old.change_id;
end;
CREATE TRIGGER changefeed_event_publish after insert on changefeed_event
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
CREATE TRIGGER changefeed_feed_delete after delete on changefeed_feed
begin
  delete from changefeed_shard where feed_id = old.feed_id;
  delete from changefeed_subscription where feed_id = old.feed_id;
  delete from changefeed_feed_source where feed_id = old.feed_id;
  delete from changefeed_backfill where feed_id = old.feed_id;
  delete from changefeed_staged where owner = old.feed_id;
end;
CREATE TRIGGER changefeed_feed_delete_events after delete on changefeed_feed
begin
  delete from changefeed_event_feed where feed_id = old.feed_id;
end;
CREATE TRIGGER changefeed_feed_delete_ulid after delete on changefeed_feed
begin
  delete from changefeed_ulid_source where feed_id = old.feed_id;
end;
CREATE TRIGGER changefeed_invoke_insert instead of insert on changefeed_invoke
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
CREATE TRIGGER changefeed_new_ulid_insert instead of insert on changefeed_new_ulid
begin
  select raise(abort, 'changefeed: there is no ULID transaction here; insert its feed_id and shard_id into changefeed_ulid_transaction after BEGIN')
   where not exists (select 1 from changefeed_ulid_open);
  select raise(abort, 'changefeed: this ULID transaction writes to several shards: name feed_id and shard_id')
   where (new.feed_id is null or new.shard_id is null) and (select count(*) from changefeed_ulid_open) > 1;
  select raise(abort, 'changefeed: this feed and shard are not in this ULID transaction; insert them into changefeed_ulid_transaction')
   where not exists (select 1 from changefeed_ulid_open o
                      where o.feed_id = coalesce(lower(new.feed_id), o.feed_id)
                        and o.shard_id = coalesce(new.shard_id, o.shard_id));
  select raise(abort, 'changefeed: count is how many ULIDs to draw; one transaction gives at most 68719476736')
    from changefeed_ulid_open o
    join changefeed_shard_ulid s on s.feed_id = o.feed_id and s.shard_id = o.shard_id
   where o.feed_id = coalesce(lower(new.feed_id), o.feed_id) and o.shard_id = coalesce(new.shard_id, o.shard_id)
     and (typeof(coalesce(new.count, 1)) <> 'integer'
          or coalesce(new.count, 1) not between 1 and 68719476736 - (s.ulid_low - o.low));
  update changefeed_ulid_open
     set drawn_low = s.ulid_low, drawn = coalesce(new.count, 1)
    from changefeed_shard_ulid s
   where s.feed_id = changefeed_ulid_open.feed_id and s.shard_id = changefeed_ulid_open.shard_id
     and changefeed_ulid_open.feed_id = coalesce(lower(new.feed_id), changefeed_ulid_open.feed_id)
     and changefeed_ulid_open.shard_id = coalesce(new.shard_id, changefeed_ulid_open.shard_id);
  update changefeed_shard_ulid
     set ulid_low = changefeed_shard_ulid.ulid_low + o.drawn
    from changefeed_ulid_open o
   where o.feed_id = changefeed_shard_ulid.feed_id and o.shard_id = changefeed_shard_ulid.shard_id
     and o.feed_id = coalesce(lower(new.feed_id), o.feed_id) and o.shard_id = coalesce(new.shard_id, o.shard_id);
end;
CREATE TRIGGER changefeed_numbered_mark after insert on changefeed_numbered
when (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - p.marked_at
             between 0 and 999
        from changefeed_progress p
       where p.feed_id = new.feed_id and p.shard = new.shard
         and p.change_sequence_number <= new.change_sequence_number
       order by p.change_sequence_number desc limit 1) is not true
begin
  insert into changefeed_progress (feed_id, shard, change_sequence_number, marked_at)
  values (new.feed_id, new.shard, new.change_sequence_number,
          cast((julianday('now') - 2440587.5) * 86400000.0 as integer))
  on conflict (feed_id, shard, change_sequence_number) do update set marked_at = excluded.marked_at;
end;
CREATE TRIGGER changefeed_session_delete instead of delete on changefeed_session
begin
  update changefeed_event
     set session_variables = old.session_variables, trace_context = old.trace_context
   where change_id > (select since from changefeed_session_open)
     and state = 'p' and tries = 0;
  delete from changefeed_session_open;
end;
CREATE TRIGGER changefeed_session_insert instead of insert on changefeed_session
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
CREATE TRIGGER changefeed_shard_delete instead of delete on changefeed_shard
begin
  delete from changefeed_numbered where feed_id = old.feed_id and shard = old.shard;
  delete from changefeed_progress where feed_id = old.feed_id and shard = old.shard;
  delete from changefeed_consumer where feed_id = old.feed_id and shard = old.shard;
  delete from changefeed_shard_def where feed_id = old.feed_id and shard = old.shard;
end;
CREATE TRIGGER changefeed_shard_insert instead of insert on changefeed_shard
begin
  select raise(abort, 'changefeed: there is no such feed; insert it into changefeed_feed first')
   where not exists (select 1 from changefeed_feed where feed_id = new.feed_id);
  select raise(abort, 'changefeed: this shard exists already')
    from changefeed_shard_def where feed_id = new.feed_id and shard = new.shard;
  insert into changefeed_shard_def (feed_id, shard, sweep_group, longpoll, start)
  values (new.feed_id, new.shard, coalesce(new.sweep_group, 0), coalesce(new.longpoll, 1),
          coalesce(new.last_change_sequence_number, 2000000000000000));
  select raise(abort, 'changefeed: the shard could not be inserted') where changes() = 0;
  insert into changefeed_progress (feed_id, shard, change_sequence_number, marked_at)
  values (new.feed_id, new.shard, coalesce(new.last_change_sequence_number, 2000000000000000),
          cast((julianday('now') - 2440587.5) * 86400000.0 as integer));
end;
CREATE TRIGGER changefeed_shard_update instead of update on changefeed_shard
begin
  select raise(abort, 'changefeed: only sweep_group and longpoll of a shard can be changed')
   where new.feed_id is not old.feed_id or new.shard is not old.shard
      or new.last_change_sequence_number is not old.last_change_sequence_number
      or new.last_sweep_time is not old.last_sweep_time;
  update changefeed_shard_def set sweep_group = new.sweep_group, longpoll = new.longpoll
   where feed_id = old.feed_id and shard = old.shard;
end;
CREATE TRIGGER changefeed_subscription_delete after delete on changefeed_subscription
begin
  delete from changefeed_subscription_shard where name = old.name;
  delete from changefeed_subscription_parked where name = old.name;
end;
CREATE TRIGGER changefeed_ulid_transaction_delete instead of delete on changefeed_ulid_transaction
begin
  delete from changefeed_ulid_open where feed_id = old.feed_id and shard_id = old.shard_id;
end;
CREATE TRIGGER changefeed_ulid_transaction_insert instead of insert on changefeed_ulid_transaction
begin
  insert into changefeed_ulid_probe (id, parent) values (1, null), (2, 1);
  delete from changefeed_ulid_probe where id = 1;
  select raise(abort, 'changefeed: say "pragma foreign_keys = on" before BEGIN: it keeps a ULID transaction from ending before its time')
   where exists (select 1 from changefeed_ulid_probe where id = 2);
  -- Bytes are joined as texts are, and those of UTF-16 are pairs.
  select raise(abort, 'changefeed: ULID transactions in SQL need a database in UTF-8; PRAGMA encoding tells what this one is')
   where length(cast('a' as blob)) <> 1;
  select raise(abort, 'changefeed: a ULID transaction needs a feed_id, a UUID with hyphens, and an integer shard_id')
   where new.feed_id is null or length(new.feed_id) <> 36 or new.feed_id not like '________-____-____-____-____________'
      or typeof(new.shard_id) <> 'integer' or new.shard_id not between -2147483648 and 2147483647;
  select raise(abort, 'changefeed: this feed and shard are in this ULID transaction already')
    from changefeed_ulid_open where feed_id = lower(new.feed_id) and shard_id = new.shard_id;
  select raise(abort, 'changefeed: time_hint is milliseconds since 1970')
   where new.time_hint is not null and (typeof(new.time_hint) <> 'integer' or new.time_hint not between 0 and 281474976710655);
  insert into changefeed_ulid_open (feed_id, shard_id, time)
  values (lower(new.feed_id), new.shard_id,
          coalesce(new.time_hint, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer)));
  select raise(abort, 'changefeed: the time hint is too far ahead of the clock; the limit is in changefeed_ulid_limit')
    from changefeed_ulid_limit
   where new.time_hint > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) + ahead_milliseconds;
  -- The clock stood still or went back: the shard keeps its time and goes on counting. Less than 2^61 ULIDs are left
  -- before the lower half would wrap around: on to the next millisecond.
  update changefeed_ulid_open
     set time = s.time + ((s.ulid_low & 9223372036854775807) >= 6917529027641081856)
    from changefeed_shard_ulid s
   where s.feed_id = changefeed_ulid_open.feed_id and s.shard_id = changefeed_ulid_open.shard_id
     and s.time >= changefeed_ulid_open.time
     and changefeed_ulid_open.feed_id = lower(new.feed_id) and changefeed_ulid_open.shard_id = new.shard_id;
  select raise(abort, 'changefeed: the ULIDs of this shard are used up')
    from changefeed_ulid_open where time > 281474976710655;
  -- The second-highest bit of the lower half is cleared, so that counting upwards never overflows.
  insert into changefeed_shard_ulid (feed_id, shard_id, time, ulid_high, ulid_low)
  select o.feed_id, o.shard_id, o.time,
         cast(substr(b.all_bytes, ((o.time) >> 40 & 255) + 1, 1)
              || substr(b.all_bytes, ((o.time) >> 32 & 255) + 1, 1)
              || substr(b.all_bytes, ((o.time) >> 24 & 255) + 1, 1)
              || substr(b.all_bytes, ((o.time) >> 16 & 255) + 1, 1)
              || substr(b.all_bytes, ((o.time) >> 8 & 255) + 1, 1)
              || substr(b.all_bytes, ((o.time) >> 0 & 255) + 1, 1)
              || randomblob(2) as blob),
         random() & -4611686018427387905
    from changefeed_ulid_open o, changefeed_ulid_byte b
   where o.feed_id = lower(new.feed_id) and o.shard_id = new.shard_id
     and not exists (select 1 from changefeed_shard_ulid s
                      where s.feed_id = o.feed_id and s.shard_id = o.shard_id and s.time >= o.time)
  on conflict (feed_id, shard_id) do update
     set time = excluded.time, ulid_high = excluded.ulid_high, ulid_low = excluded.ulid_low;
  update changefeed_ulid_open
     set low = (select s.ulid_low from changefeed_shard_ulid s
                 where s.feed_id = changefeed_ulid_open.feed_id and s.shard_id = changefeed_ulid_open.shard_id)
   where feed_id = lower(new.feed_id) and shard_id = new.shard_id;
end;
CREATE VIEW changefeed_bounds (feed_id, shard, lowest, highest) as
  select s.feed_id, s.shard, d.trimmed, s.last_change_sequence_number
    from changefeed_shard s
    join changefeed_shard_def d on d.feed_id = s.feed_id and d.shard = s.shard;
CREATE VIEW changefeed_captured
  (feed_id, shard, op, key1, key2, key3, key4, key5, key6, key7, key8, old, new) as
  select feed_id, shard, op, key1, key2, key3, key4, key5, key6, key7, key8, old, new
    from changefeed_numbered;
CREATE VIEW changefeed_captured_event
  (trigger_id, op, old, new, order_key, feed_id, shard) as
  select trigger_id, op, old, new, order_key, feed_id, shard from changefeed_event;
CREATE VIEW changefeed_change (feed_id, shard, change_id, change_sequence_number) as
  select feed_id, shard, change_id, change_sequence_number from changefeed_numbered;
CREATE VIEW changefeed_change_row
  (change_id, op, key1, key2, key3, key4, key5, key6, key7, key8) as
  select change_id, op, key1, key2, key3, key4, key5, key6, key7, key8
    from changefeed_numbered where key1 is not null;
CREATE VIEW changefeed_event_invocation_logs
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
CREATE VIEW changefeed_event_log
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
CREATE VIEW changefeed_invoke (trigger_name, payload) as
  select name, null from changefeed_event_trigger
   where dropped_at is null and json_extract(definition, '$.manual') = 1;
CREATE VIEW changefeed_new_ulid (feed_id, shard_id, count, n, ulid) as
with recursive p (feed_id, shard_id, count, n, low) as (
  select feed_id, shard_id, drawn, 1, drawn_low from changefeed_ulid_open where drawn > 0
  union all
  select feed_id, shard_id, count, n + 1, low from p where n < count
)
select p.feed_id, p.shard_id, p.count, p.n,
       cast(s.ulid_high
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 56 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 48 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 40 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 32 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 24 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 16 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 8 & 255) + 1, 1)
           || substr(b.all_bytes, ((p.low + p.n - 1) >> 0 & 255) + 1, 1) as blob)
  from p
  join changefeed_shard_ulid s on s.feed_id = p.feed_id and s.shard_id = p.shard_id
  cross join changefeed_ulid_byte b;
CREATE VIEW changefeed_read
  (feed_id, shard, change_sequence_number, change_id, lowest_cursor,
   op, key1, key2, key3, key4, key5, key6, key7, key8, old, new) as
  select n.feed_id, n.shard, n.change_sequence_number, n.change_id,
         case when d.frontier < n.change_sequence_number then max(d.start, d.trimmed)
              else d.trimmed end,
         case n.op when 'I' then 'insert' when 'U' then 'update' when 'D' then 'delete'
                   when 'B' then 'backfill' end,
         n.key1, n.key2, n.key3, n.key4, n.key5, n.key6, n.key7, n.key8, n.old, n.new
    from changefeed_shard_def d
    join changefeed_numbered n on n.feed_id = d.feed_id and n.shard = d.shard;
CREATE VIEW changefeed_session (session_variables, trace_context) as
  select session_variables, trace_context from changefeed_session_open;
CREATE VIEW changefeed_shard
  (feed_id, shard, sweep_group, longpoll, last_change_sequence_number, last_sweep_time, generation, closed) as
  select d.feed_id, d.shard, d.sweep_group, d.longpoll,
         max(d.start, d.trimmed,
             coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                        where n.feed_id = d.feed_id and n.shard = d.shard), 0)),
         (select strftime('%Y-%m-%d %H:%M:%f', p.marked_at / 86400000.0 + 2440587.5)
            from changefeed_progress p
           where p.feed_id = d.feed_id and p.shard = d.shard
           order by p.change_sequence_number desc limit 1),
         d.generation, d.closed
    from changefeed_shard_def d;
CREATE VIEW changefeed_ulid_byte (all_bytes) as
select cast(x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f'
         || x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' as blob);
CREATE VIEW changefeed_ulid_transaction (feed_id, shard_id, time_hint) as
select feed_id, shard_id, time from changefeed_ulid_open;
