-- Watches.
--
-- Triggers on a watched table note the keys of changed rows in changefeed_changes_<table_id>; a
-- worker moves them to the backlog of each function that watches the table,
-- changefeed_leases_<function_id>_<table_id>: one row per key, however often it has changed.
--
-- Differs: SQLite has one writer at a time, so no lock of ours keeps workers apart, and versions
-- become visible in their order by themselves.

-- Tables that are tracked because somebody watches them.
create table changefeed_watched_table (
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

create table changefeed_watch (
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

create table changefeed_global_state (
  function_id       text    not null,
  table_id          integer not null,
  -- Every change up to this version has been processed or parked. Kept about once a second.
  last_sync_version integer not null default 0,
  last_access_time  integer not null, -- milliseconds since 1970
  primary key (function_id, table_id)
) strict, without rowid;

-- The newest version of a change, and the newest lease.
create table changefeed_watch_counter (
  only_row   integer not null primary key default 1 check (only_row = 1),
  version    integer not null default 0,
  generation integer not null default 0
) strict;
-- Receivers of webhooks tell batches apart by their versions: those of another database, or of this one
-- before it was installed anew, are others. So the first one is by the time, and by chance.
insert into changefeed_watch_counter (version)
values (cast(strftime('%s', 'now') as integer) * 1048576000 + abs(random() % 1048576000));

-- The latest time that was seen on the machine's clock, to notice when it was set back.
create table changefeed_clock (
  only_row integer not null primary key default 1 check (only_row = 1),
  latest   integer not null default 0 -- milliseconds since 1970
) strict;
insert into changefeed_clock default values;
