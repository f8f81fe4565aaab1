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

-- ULID transactions in plain SQL, for programs without our library. What is said about them in docs/ulids.md:
--
--   pragma foreign_keys = on;
--   begin immediate;
--   insert into changefeed_ulid_transaction (feed_id, shard_id) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0);
--   insert into changefeed_new_ulid (count) values (1);
--   insert into event (shard, ulid, note) select 0, ulid, 'hello' from changefeed_new_ulid;
--   delete from changefeed_ulid_transaction;
--   commit;
--
-- Drawing moves the shard's state at once, so that whatever is committed, the state is behind all of its ULIDs.

-- The pairs of the transaction that is open. Nothing of it can be committed: the row refers to one that there never
-- is, and a COMMIT is refused until it is deleted. So is a statement outside of a transaction, which would be committed
-- before the row that its ULID is for.
create table changefeed_ulid_open (
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

-- Tells whether foreign keys are enforced: a row of it that refers to a deleted one is gone then. The pragma of the same
-- name could not be asked here: with trusted_schema = off not even another table could be altered any more.
create table changefeed_ulid_probe (
  id     integer primary key,
  parent integer references changefeed_ulid_probe on delete cascade
) strict;

-- SQLite makes no bytes of a number; these are all there are.
create view changefeed_ulid_byte (all_bytes) as
select cast(x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f'
         || x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' as blob);

create view changefeed_ulid_transaction (feed_id, shard_id, time_hint) as
select feed_id, shard_id, time from changefeed_ulid_open;

create trigger changefeed_ulid_transaction_insert instead of insert on changefeed_ulid_transaction
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

create trigger changefeed_ulid_transaction_delete instead of delete on changefeed_ulid_transaction
begin
  delete from changefeed_ulid_open where feed_id = old.feed_id and shard_id = old.shard_id;
end;

-- What was drawn last, for each pair; n counts from 1. Inserting draws the next `count`.
create view changefeed_new_ulid (feed_id, shard_id, count, n, ulid) as
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

create trigger changefeed_new_ulid_insert instead of insert on changefeed_new_ulid
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
