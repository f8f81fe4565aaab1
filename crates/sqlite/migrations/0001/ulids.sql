-- ULID transactions. `begin_ulid` in `src/ulids.rs` tells how they work.
--
-- A feed_id here is a UUID from the application's source code, in lower case with hyphens. It has
-- nothing to do with the numbers in changefeed_feed; changefeed_ulid_source connects the two.

-- Where the ULIDs of a shard stand between two transactions: the next one it may give is
-- ulid_high followed by the eight bytes of ulid_low.
create table changefeed_shard_ulid (
  feed_id   text    not null check (length(feed_id) = 36 and feed_id = lower(feed_id)),
  shard_id  integer not null,
  time      integer not null, -- milliseconds since 1970
  ulid_high blob    not null check (length(ulid_high) = 8),
  ulid_low  integer not null,
  primary key (feed_id, shard_id)
) strict, without rowid;

-- How often the writers of a shard had to go on without one of theirs.
--
-- Differs: it stays empty. Writers queue on the lock of the file, which the operating system frees
-- when its holder dies, so there is no lock that others would have to burn.
create table changefeed_incident (
  feed_id     text    not null,
  shard_id    integer not null,
  count       integer not null,
  reported_at integer, -- milliseconds since 1970
  primary key (feed_id, shard_id)
) strict, without rowid;

-- How far ahead of the clock a time hint may be. A hint far in the future would keep its shard there: all later
-- ULIDs of the shard would tell that time.
create table changefeed_ulid_limit (
  only_row           integer not null primary key default 1 check (only_row = 1),
  ahead_milliseconds integer not null default 60000 check (ahead_milliseconds >= 0)
) strict;
insert into changefeed_ulid_limit default values;

-- Where the rows are of a feed that is ordered by ULIDs.
create table changefeed_ulid_source (
  feed_id      integer not null primary key,
  ulid_feed    text    not null check (length(ulid_feed) = 36 and ulid_feed = lower(ulid_feed)),
  table_schema text,
  table_name   text    not null,
  shard_column text    not null,
  ulid_column  text    not null
) strict;

create trigger changefeed_feed_delete_ulid after delete on changefeed_feed
begin
  delete from changefeed_ulid_source where feed_id = old.feed_id;
end;
