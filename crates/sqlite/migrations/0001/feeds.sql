-- Feeds.
-- Older programs: there are none.
--
-- What an application uses from SQL, in any language, also from the stock sqlite3 shell
-- (3.38 or newer):
--
--   begin immediate;
--   update changefeed_change_id set value = value + 1;
--   insert into my_event (…, change_id) values (…, (select value from changefeed_change_id));
--   insert into changefeed_change (feed_id, shard, change_id)
--     values (37, 0, (select value from changefeed_change_id));
--   commit;
--
-- A change_id that is left out is taken from changefeed_change_id by the insert itself.
-- Readers select from changefeed_read by feed_id, shard and change_sequence_number > cursor, with
-- lowest_cursor <= cursor: see there.
--
-- Differs: SQLite has one writer at a time, so a change gets its number when it is inserted and
-- nobody has to sweep. A transaction that rolls back takes its numbers back with it.
--
-- There are no foreign keys here: they are off by default in every connection, so nothing could
-- rest on them. Triggers do their work instead.

create table changefeed_schema (
  version  integer not null,
  checksum text    not null -- of the text of the migration: one that was changed afterwards is noticed
) strict;

-- The lives of this database, the last of which counts: it began here, or with a recovery from a backup
-- (sql/recover.sql). Cursors belong to one.
create table changefeed_incarnation (
  number      integer not null primary key,
  incarnation text    not null
) strict;
insert into changefeed_incarnation (number, incarnation)
values (1, printf('%012x', cast((julianday('now') - 2440587.5) * 86400000 as integer)) || lower(hex(randomblob(10))));

create table changefeed_feed (
  feed_id integer not null primary key check (feed_id between -32768 and 32767),
  name    text    not null unique check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  comment text,
  -- How long its changes are kept after they got their numbers, in milliseconds: those that every consumer has
  -- read, and those that some consumer has not read. For ever where it is null.
  trim_after_ms        integer check (trim_after_ms >= 0),
  trim_unread_after_ms integer check (trim_unread_after_ms >= trim_after_ms)
) strict;

-- What is kept about a shard; changefeed_shard shows it.
create table changefeed_shard_def (
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

-- The numbered changes. Of a captured one `op` says what happened (I insert, U update, D delete, B backfill),
-- and key1 to key8 hold the primary key of its row, each value with its own type, so that the row can be
-- found again exactly. Feeds with images also keep the row before and after, as JSON.
create table changefeed_numbered (
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

-- "This number was given at this time." At most about one mark per second and shard: enough to
-- know the age of any number to within a second, at nearly no cost to the writer. Numbers
-- between two marks are at most a second younger than the first of the two.
create table changefeed_progress (
  feed_id   integer not null,
  shard     integer not null,
  change_sequence_number integer not null,
  marked_at integer not null, -- milliseconds since 1970
  primary key (feed_id, shard, change_sequence_number)
) strict, without rowid;

-- The counter for change_id; its first value is 1000000000000000.
create table changefeed_change_id (
  only_row integer not null primary key default 1 check (only_row = 1),
  value    integer not null
) strict;

create table changefeed_consumer (
  name    text    not null,
  feed_id integer not null,
  shard   integer not null,
  cursor  text    not null,
  updated_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  primary key (name, feed_id, shard)
) strict, without rowid;

-- The changes of a feed are pushed to a sink. The position is the cursor of the consumer of the same name.
create table changefeed_subscription (
  name       text    not null primary key check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  feed_id    integer not null,
  definition text    not null, -- what it pushes where, as JSON
  paused     text,             -- why
  created_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) strict, without rowid;

-- Where each of its shards stands. Whoever works on one holds the lease push/NAME/SHARD.
create table changefeed_subscription_shard (
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

-- Changes that a sink refused and that were left out.
create table changefeed_subscription_parked (
  name      text    not null,
  shard     integer not null,
  epoch     integer not null,
  cursor    text    not null,
  reason    text    not null,
  parked_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  primary key (name, shard, epoch, cursor)
) strict, without rowid;

create trigger changefeed_subscription_delete after delete on changefeed_subscription
begin
  delete from changefeed_subscription_shard where name = old.name;
  delete from changefeed_subscription_parked where name = old.name;
end;

create table changefeed_lease (
  name       text    not null primary key,
  owner      text, -- null once it was given back
  generation integer not null,
  renewal    integer not null default 1, -- grows whenever it is granted or renewed
  ttl        integer not null default 0, -- milliseconds
  expires_at integer not null -- milliseconds since 1970
) strict, without rowid;

-- Where the rows behind a feed's changes are.
create table changefeed_feed_source (
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

-- How far a backfill has come: the key of the last row that got a number (for a joined source
-- its change_id).
create table changefeed_backfill (
  feed_id  integer not null primary key,
  total    integer not null,
  done     integer not null default 0,
  finished integer not null default 0,
  key1 any, key2 any, key3 any, key4 any, key5 any, key6 any, key7 any, key8 any
) strict;

-- Rows that the statement at work may be about to remove by its REPLACE: no delete trigger fires for
-- them, so they are noted before and looked for afterwards. The owner is a feed, an event trigger or a
-- watched table; see `staging.rs`. What a statement leaves here is cleared away by the next one.
create table changefeed_staged (
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
create index changefeed_staged_batch on changefeed_staged (owner, batch);

-- The weights of the shard hash, see `shard_of`: position squared times 7919, modulo 65521.
create table changefeed_weight (
  position integer not null primary key,
  weight   integer not null
) strict;

-- Shards, as applications see and insert them.
--
-- Differs: the newest number is not stored but looked up, which is one seek: a counter would be
-- one more page to write for every change. Nothing is swept, so last_sweep_time is when the
-- shard last got a number, to within a second.
create view changefeed_shard
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

create trigger changefeed_shard_insert instead of insert on changefeed_shard
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

-- The sweep group and longpoll may be changed; the numbers are ours.
create trigger changefeed_shard_update instead of update on changefeed_shard
begin
  select raise(abort, 'changefeed: only sweep_group and longpoll of a shard can be changed')
   where new.feed_id is not old.feed_id or new.shard is not old.shard
      or new.last_change_sequence_number is not old.last_change_sequence_number
      or new.last_sweep_time is not old.last_sweep_time;
  update changefeed_shard_def set sweep_group = new.sweep_group, longpoll = new.longpoll
   where feed_id = old.feed_id and shard = old.shard;
end;

create trigger changefeed_shard_delete instead of delete on changefeed_shard
begin
  delete from changefeed_numbered where feed_id = old.feed_id and shard = old.shard;
  delete from changefeed_progress where feed_id = old.feed_id and shard = old.shard;
  delete from changefeed_consumer where feed_id = old.feed_id and shard = old.shard;
  delete from changefeed_shard_def where feed_id = old.feed_id and shard = old.shard;
end;

create trigger changefeed_feed_delete after delete on changefeed_feed
begin
  delete from changefeed_shard where feed_id = old.feed_id;
  delete from changefeed_subscription where feed_id = old.feed_id;
  delete from changefeed_feed_source where feed_id = old.feed_id;
  delete from changefeed_backfill where feed_id = old.feed_id;
  delete from changefeed_staged where owner = old.feed_id;
end;

-- What readers select from and writers insert into.
create view changefeed_change (feed_id, shard, change_id, change_sequence_number) as
  select feed_id, shard, change_id, change_sequence_number from changefeed_numbered;

-- Changes for readers by SQL, each with the lowest cursor from which it may be read: who reads below it
-- would jump over what was trimmed, or over what a backfill has still to put in between. The key of a captured
-- change has its values in the order of the primary key, and as they are in the table.
--
--   select r.change_sequence_number, r.change_id, r.op, r.key1 from changefeed_read r
--    where r.feed_id = 37 and r.shard = 0
--      and r.change_sequence_number > :cursor and r.lowest_cursor <= :cursor
--    order by r.change_sequence_number limit 100;
--
-- A cursor outside of changefeed_bounds finds nothing: below `lowest` it has expired, above
-- `highest` it comes from another feed or database.
create view changefeed_read
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

create view changefeed_bounds (feed_id, shard, lowest, highest) as
  select s.feed_id, s.shard, d.trimmed, s.last_change_sequence_number
    from changefeed_shard s
    join changefeed_shard_def d on d.feed_id = s.feed_id and d.shard = s.shard;

-- Which row a captured change is about, and what happened to it.
create view changefeed_change_row
  (change_id, op, key1, key2, key3, key4, key5, key6, key7, key8) as
  select change_id, op, key1, key2, key3, key4, key5, key6, key7, key8
    from changefeed_numbered where key1 is not null;

-- Where the capture triggers on application tables put what they see; not for reading.
create view changefeed_captured
  (feed_id, shard, op, key1, key2, key3, key4, key5, key6, key7, key8, old, new) as
  select feed_id, shard, op, key1, key2, key3, key4, key5, key6, key7, key8, old, new
    from changefeed_numbered;

-- A new change takes the next number. No statement in these triggers relies on a conflict clause
-- of its own, because that of the application's statement overrides it: whatever an IGNORE would
-- skip is noticed by changes(), and a new number is in conflict with none.
create trigger changefeed_change_insert instead of insert on changefeed_change
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

-- Data older than the feed, with a number chosen by the application.
create trigger changefeed_change_insert_old instead of insert on changefeed_change
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

-- A captured change takes a change_id and the next number, and keeps what happened and the key of its row. Where
-- somebody deleted the feed by SQL, and so left its triggers on the table, nothing is captured: the
-- application's write must not fail for that.
create trigger changefeed_captured_insert instead of insert on changefeed_captured
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

-- A mark, unless the one before is less than a second old (and the clock was not put back).
create trigger changefeed_numbered_mark after insert on changefeed_numbered
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

insert into changefeed_change_id (value) values (999999999999999);

insert into changefeed_weight (position, weight)
with recursive positions (position) as (
  values (1) union all select position + 1 from positions where position < 255
)
select position, position * position * 7919 % 65521 from positions;
