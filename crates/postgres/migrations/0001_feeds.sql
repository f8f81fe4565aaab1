-- changefeed 1: feeds on PostgreSQL 13 and later.
-- Older programs: there are none.
--
-- What users see: feed, shard, change, consumer, the sequence change_id, sweep() and
-- sweep_loop(). Everything else is how it works and may change.
--
-- How a change gets its number:
--   1. A writer inserts (feed_id, shard, change_id) into the view `change`. The row lands in an
--      inbox segment together with the writer's transaction id. Nothing is locked, nobody is
--      notified: writers pay one heap insert and two index inserts.
--   2. A sweep finds the shards with news by transaction id, so that it costs what has changed and
--      not what exists. It locks the shard's definition, takes a snapshot, and copies the rows that
--      are committed in this snapshot, but were not in the shard's previous one, to `numbered`, in
--      order of change_id. The snapshot goes to `progress`; numbers and snapshot commit together.
--   3. Inbox rows are never updated or deleted. A segment whose rows all have numbers is
--      truncated as soon as no snapshot is left that cannot see those numbers: see tidy(). So an
--      old snapshot leaves no dead rows in our way, and a dump with an old snapshot loses nothing.
--
-- The same reasoning made `progress` append-only: its newest row is found from the end of the
-- index, however many old versions a held snapshot forces the server to keep.

-- Operators in constraints and views are looked up once, now. They must not be those of somebody who may create
-- in a schema of the path of whoever runs this, so it is fixed for this and the following migrations.
set local search_path = pg_catalog, pg_temp;

create schema changefeed;

create table changefeed.schema_version (
    version      integer primary key,
    -- Of the text of the migration: one that was changed afterwards is noticed.
    checksum     text not null,
    installed_at timestamptz not null default clock_timestamp()
);

-- The lives of this database, the last of which counts: it began here, or with a recovery from a backup. Cursors
-- belong to one. Milliseconds since 1970 and chance, in hexadecimal digits.
create table changefeed.incarnation (
    number      integer primary key,
    incarnation text not null
        default pg_catalog.lpad(pg_catalog.to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
                || pg_catalog.substr(pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''), 1, 20)
);
insert into changefeed.incarnation (number) values (1);

create function changefeed.incarnation() returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select i.incarnation from changefeed.incarnation i order by i.number desc limit 1
$$;

-- Begins another life: to be called after the database was restored from a backup. Readers who say which life
-- their cursor belongs to are refused then, instead of missing what is lost.
create function changefeed.recover() returns text
language sql set search_path = pg_catalog, pg_temp as $$
    insert into changefeed.incarnation (number)
    select max(i.number) + 1 from changefeed.incarnation i
    returning incarnation
$$;

-- Feeds and shards ------------------------------------------------------------------------------

create table changefeed.feed (
    feed_id smallint primary key,
    name    varchar(100) not null unique check (name ~ '^[a-zA-Z0-9_-]+$'),
    comment text,
    -- How long its changes are kept after they got their numbers, in milliseconds: those that every consumer has
    -- read, and those that some consumer has not read. For ever where it is null.
    trim_after_ms        bigint check (trim_after_ms >= 0),
    trim_unread_after_ms bigint check (trim_unread_after_ms >= trim_after_ms)
);

-- Where the rows behind a feed's changes are. `source` is a regclass, so it follows a renamed
-- table.
create table changefeed.feed_source (
    feed_id          smallint primary key references changefeed.feed on delete cascade,
    kind             text not null check (kind in ('captured', 'joined')),
    source           regclass not null,
    change_id_column text,
    shard_by         text,
    -- The shards that the rows of a captured table are spread over, from first_shard on.
    shards           smallint not null,
    first_shard      smallint not null default 0,
    -- Whether its changes keep the row before and after.
    images           boolean not null default false,
    -- Which rows are in it, as the condition was written, and which columns are in its images.
    condition        text,
    columns          text[],
    -- The columns whose values are in `change_row`, by name and by number: the primary key when the
    -- feed was made. Numbers follow a renamed column, but mean something only in `key_of`, because
    -- a dump that is restored numbers columns anew.
    key_names        text[],
    key_places       smallint[],
    key_of           text
);

-- Who may read a feed by SQL, besides those who may read changefeed.numbered itself: see grant_read().
create table changefeed.feed_reader (
    feed_id smallint not null references changefeed.feed on delete cascade,
    reader  regrole not null,
    primary key (feed_id, reader)
);

create table changefeed.shard_definition (
    feed_id       smallint not null references changefeed.feed on delete cascade,
    shard         smallint not null,
    sweep_group   smallint not null default 0,
    longpoll      boolean not null default true,
    -- The number before the first live one; everything up to it is for data older than the feed.
    start         bigint not null default 2000000000000000 check (start >= 0),
    -- The highest number that trimming has removed.
    trimmed_to    bigint not null default 0,
    -- The highest number that backfilling has given.
    backfilled_to bigint,
    -- How often the number of shards had been changed when this one was made, and whether it was changed again: then
    -- nothing is added to this one. What was added before may still wait for its number.
    generation    smallint not null default 0,
    closed        boolean not null default false,
    primary key (feed_id, shard)
);
create unique index ix_sweep_group on changefeed.shard_definition (sweep_group, feed_id, shard);

-- One row per sweep that found something, thinned to about one a second.
create table changefeed.progress (
    feed_id                     smallint not null,
    shard                       smallint not null,
    last_change_sequence_number bigint not null,
    sweep_id                    bigint not null,
    swept_at                    timestamptz not null default clock_timestamp(),
    -- Every change committed in this snapshot has its number.
    snapshot                    pg_snapshot not null,
    -- A transaction too large for one sweep: of its changes, those up to `resume_after` have their
    -- numbers as well.
    resume_xid                  xid8,
    resume_after                bigint,
    primary key (feed_id, shard, last_change_sequence_number, sweep_id),
    foreign key (feed_id, shard) references changefeed.shard_definition on delete cascade
);

create view changefeed.shard as
select d.feed_id, d.shard, d.sweep_group, d.longpoll,
       p.last_change_sequence_number, p.swept_at as last_sweep_time, d.generation, d.closed
from changefeed.shard_definition d
cross join lateral (
    select p.last_change_sequence_number, p.swept_at
    from changefeed.progress p
    where p.feed_id = d.feed_id and p.shard = d.shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1
) p;
alter view changefeed.shard alter column sweep_group set default 0;
alter view changefeed.shard alter column longpoll set default true;
alter view changefeed.shard alter column last_change_sequence_number set default 2000000000000000;

-- Changes ---------------------------------------------------------------------------------------

-- Cache 1: a cache is per session, so a larger one would hand a later writer a smaller id.
create sequence changefeed.change_id as bigint start 1000000000000000 cache 1;

create table changefeed.numbered (
    feed_id                smallint not null,
    shard                  smallint not null,
    change_sequence_number bigint not null,
    change_id              bigint not null,
    primary key (feed_id, shard, change_sequence_number)
);
-- Numbers follow change ids closely, so this finds the number of a change at hardly any cost
-- to the sweep.
create index ix_change_id on changefeed.numbered using brin (change_id) with (autosummarize = on);

-- The segment of a writer is chosen by its transaction id, 8192 transactions at a time, so that
-- writers leave a segment by themselves and nobody has to tell them. See change_insert().
-- Rows that are only ever inserted and then truncated need no vacuum for their sake.
create table changefeed.inbox_0 (
    feed_id   smallint not null,
    shard     smallint not null,
    change_id bigint not null,
    -- The top-level transaction, not xmin, which may be a savepoint's.
    xid       xid8 not null
) with (autovacuum_vacuum_insert_threshold = -1);
create table changefeed.inbox_1 (like changefeed.inbox_0)
    with (autovacuum_vacuum_insert_threshold = -1);
create table changefeed.inbox_2 (like changefeed.inbox_0)
    with (autovacuum_vacuum_insert_threshold = -1);
create table changefeed.inbox_3 (like changefeed.inbox_0)
    with (autovacuum_vacuum_insert_threshold = -1);
-- The first finds the news of a shard, in pieces however large a transaction was; the second the
-- shards with news.
create index on changefeed.inbox_0 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_1 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_2 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_3 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_0 (xid);
create index on changefeed.inbox_1 (xid);
create index on changefeed.inbox_2 (xid);
create index on changefeed.inbox_3 (xid);

create view changefeed.inbox as
select feed_id, shard, change_id, xid from changefeed.inbox_0
union all select feed_id, shard, change_id, xid from changefeed.inbox_1
union all select feed_id, shard, change_id, xid from changefeed.inbox_2
union all select feed_id, shard, change_id, xid from changefeed.inbox_3;

-- When a segment may be truncated: see tidy().
create table changefeed.inbox_segment (
    segment smallint primary key,
    -- Every row of the segment that this snapshot shows had its number when it was taken...
    drained pg_snapshot,
    -- ...and every snapshot that begins at this transaction or later shows these numbers.
    safe_at xid8
);
insert into changefeed.inbox_segment (segment) values (0), (1), (2), (3);

-- Transaction ids mean nothing in another cluster: see restamp().
create table changefeed.cluster (
    singleton         boolean primary key default true check (singleton),
    system_identifier bigint not null,
    -- Grows when a shard changes its sweep group.
    shards_moved      bigint not null default 0
);
insert into changefeed.cluster (system_identifier)
select system_identifier from pg_catalog.pg_control_system();

-- Committed changes that wait for their number.
create view changefeed.pending as
select i.feed_id, i.shard, i.change_id
from changefeed.shard_definition d
cross join lateral (
    select p.snapshot, p.resume_xid, p.resume_after
    from changefeed.progress p
    where p.feed_id = d.feed_id and p.shard = d.shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1
) p
join changefeed.inbox i on i.feed_id = d.feed_id and i.shard = d.shard
    and i.xid >= pg_snapshot_xmin(p.snapshot)
where not pg_visible_in_snapshot(i.xid, p.snapshot)
  and not (p.resume_xid is not null and i.xid = p.resume_xid and i.change_id <= p.resume_after);

-- A query for `change_sequence_number > cursor` never touches the second half: the planner
-- knows that NULL is not greater than anything.
create view changefeed.change as
select feed_id, shard, change_id, change_sequence_number from changefeed.numbered
union all
select feed_id, shard, change_id, null::bigint from changefeed.pending;

-- Runs with our rights, so that a writer needs no more than INSERT on the view. Every operator
-- and every type is spelt with its schema (a writer's pg_temp would come first) instead of a
-- `set search_path`, which would cost each writer more than the insert itself.
create function changefeed.change_insert() returns trigger
language plpgsql security definer as $$
declare
    writer  pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    segment pg_catalog.int4;
    highest pg_catalog.int8;
    lowest  pg_catalog.int8;
begin
    if new.change_sequence_number is null then
        segment := ((writer::pg_catalog.text::pg_catalog.int8) operator(pg_catalog.>>) 13)
                   operator(pg_catalog.&) 3;
        if segment operator(pg_catalog.=) 0 then
            insert into changefeed.inbox_0 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.closed;
        elsif segment operator(pg_catalog.=) 1 then
            insert into changefeed.inbox_1 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.closed;
        elsif segment operator(pg_catalog.=) 2 then
            insert into changefeed.inbox_2 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.closed;
        else
            insert into changefeed.inbox_3 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.closed;
        end if;
        if found then
            return new;
        end if;
    else
        select d.start, d.trimmed_to into highest, lowest from changefeed.shard_definition d
        where d.feed_id operator(pg_catalog.=) new.feed_id
          and d.shard operator(pg_catalog.=) new.shard;
        if found then
            if exists (select from changefeed.backfill b
                       where b.feed_id operator(pg_catalog.=) new.feed_id
                         and b.finished_at is null) then
                raise exception 'changefeed: a backfill of feed % is at work', new.feed_id
                    using errcode = 'object_in_use',
                          hint = 'Insert old data before it or after it.';
            end if;
            if new.change_sequence_number operator(pg_catalog.>) highest
               or new.change_sequence_number operator(pg_catalog.<=) lowest then
                raise exception 'changefeed: number % of feed % shard % is not free for old data',
                    new.change_sequence_number, new.feed_id, new.shard
                    using errcode = 'check_violation',
                          hint = pg_catalog.format(
                              'Numbers given by hand must be above %s and at most %s; leave the '
                              'number out for a live change.', lowest, highest);
            end if;
            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            values (new.feed_id, new.shard, new.change_sequence_number, new.change_id);
            return new;
        end if;
    end if;
    if exists (select from changefeed.shard_definition d
               where d.feed_id operator(pg_catalog.=) new.feed_id
                 and d.shard operator(pg_catalog.=) new.shard) then
        raise exception 'changefeed: shard % of feed % is closed', new.shard, new.feed_id
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'The feed goes on in the shards of the next generation, see changefeed.shard.';
    end if;
    raise exception 'changefeed: feed % has no shard %', new.feed_id, new.shard
        using errcode = 'foreign_key_violation',
              hint = 'Insert the feed into changefeed.feed and the shard into changefeed.shard.';
end $$;

-- With session_replication_role = replica the trigger below does not fire, and a view has no other
-- means: the insert would be accepted and nothing stored. So the default of a column that writers
-- leave out refuses it. Everybody may call the function, or writers would need a grant for it: it does
-- nothing but refuse.
create function changefeed.refuse_change() returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'changefeed: this change would not be stored, because session_replication_role is replica'
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'Publish it after `set local session_replication_role = origin`, or `local`.';
end $$;

alter view changefeed.change alter column change_sequence_number set default
    case when pg_catalog.current_setting('session_replication_role')
              operator(pg_catalog.=) 'replica'
         then changefeed.refuse_change() end;

create trigger change_insert instead of insert on changefeed.change
for each row execute function changefeed.change_insert();

-- Reading ---------------------------------------------------------------------------------------

create table changefeed.backfill (
    feed_id     smallint primary key references changefeed.feed on delete cascade,
    -- The primary key of the last row done, as a JSON array.
    last_key    jsonb,
    done        bigint not null default 0,
    total       bigint not null,
    finished_at timestamptz
);

-- A feed by its name, for messages.
create function changefeed.feed_name(of_feed smallint) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select coalesce((select f.name from changefeed.feed f where f.feed_id = of_feed), of_feed::text)
$$;

-- The ends of a shard, and whether a backfill is at work in it.
create view changefeed.shard_end as
select d.feed_id, d.shard, d.trimmed_to, d.start, s.last_change_sequence_number,
       exists (select from changefeed.backfill b
               where b.feed_id = d.feed_id and b.finished_at is null) as backfilling
from changefeed.shard_definition d
join changefeed.shard s on s.feed_id = d.feed_id and s.shard = d.shard;

-- Refuses a cursor that was trimmed or was never given: an error, never a silent jump.
create function changefeed.check_cursor(of_feed smallint, of_shard smallint, after bigint) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    lowest  bigint;
    highest bigint;
begin
    select e.trimmed_to, e.last_change_sequence_number into lowest, highest
    from changefeed.shard_end e where e.feed_id = of_feed and e.shard = of_shard;
    if not found then
        raise exception 'changefeed: feed ''%'' has no shard %', changefeed.feed_name(of_feed), of_shard
            using errcode = 'CF103', hint = 'changefeed.feed and changefeed.shard list what there is.';
    elsif after < lowest then
        raise exception 'changefeed: cursor % of feed ''%'' shard % has expired: changes up to % were trimmed',
            after, changefeed.feed_name(of_feed), of_shard, lowest
            using errcode = 'CF101',
                  hint = 'Read the current state of the data, then go on from the first or the last change.';
    elsif after > highest then
        raise exception 'changefeed: cursor % is ahead of feed ''%'' shard %, whose last number is %',
            after, changefeed.feed_name(of_feed), of_shard, highest
            using errcode = 'CF102',
                  hint = 'it comes from another feed or database, or this database was restored from a backup';
    end if;
end $$;

-- The numbers of the next changes of a shard, for page(). `after` is the number of the last change that was
-- read, and null for the oldest that is kept. A reader of backfilled numbers stops where the backfill stands
-- instead of jumping over what is still to come.
-- The settings leave one plan to every statement, through the primary keys: a plan may be kept, because no
-- statistics, however wrong, could have led to another one.
create function changefeed.next_changes(of_feed smallint, of_shard smallint, after bigint, "limit" integer)
returns table (change_sequence_number bigint, change_id bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    select n.change_sequence_number, n.change_id
    from changefeed.numbered n
    where n.feed_id = of_feed and n.shard = of_shard and n.change_sequence_number > coalesce(after, 0)
      and n.change_sequence_number <= (
          select case when e.backfilling and coalesce(after, 0) < e.start then e.start
                      else 9223372036854775807 end
          from changefeed.shard_end e where e.feed_id = of_feed and e.shard = of_shard)
    order by n.change_sequence_number
    limit "limit";
    perform changefeed.check_cursor(of_feed, of_shard, after);
end $$;

-- Whether nothing will ever come after a number: the shard is closed, and everything has its number. In one statement,
-- because a sweep may be at work.
create function changefeed.is_over(of_feed smallint, of_shard smallint, after bigint) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
    return coalesce((
        select not exists (select from changefeed.numbered n
                           where n.feed_id = of_feed and n.shard = of_shard
                             and n.change_sequence_number > coalesce(after, 0))
               and not exists (select from changefeed.pending p where p.feed_id = of_feed and p.shard = of_shard)
        from changefeed.shard_definition d
        where d.feed_id = of_feed and d.shard = of_shard and d.closed), false);
end $$;

-- Inserting, changing and removing shards ---------------------------------------------------------

-- Keeps writers out for the rest of the transaction, once none is at work. The writers of all feeds
-- queue behind whoever waits for these locks: each try is short, and nothing is held between two. The
-- caller's lock_timeout says for how long it is tried.
create function changefeed.hold_inbox() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    patience constant bigint := (select s.setting from pg_settings s where s.name = 'lock_timeout');
    began    constant timestamptz := clock_timestamp();
begin
    loop
        begin
            -- A try that fails takes this back.
            perform set_config('lock_timeout', '20', true);
            lock table changefeed.inbox_0, changefeed.inbox_1, changefeed.inbox_2, changefeed.inbox_3
                in share row exclusive mode;
            perform set_config('lock_timeout', patience::text, true);
            return;
        exception when lock_not_available then
            if patience > 0 and clock_timestamp() > began + patience * interval '1 millisecond' then
                raise;
            end if;
        end;
        perform pg_sleep(0.1);
    end loop;
end $$;

create function changefeed.shard_write() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        insert into changefeed.shard_definition (feed_id, shard, sweep_group, longpoll, start)
        values (new.feed_id, new.shard, coalesce(new.sweep_group, 0), coalesce(new.longpoll, true),
                coalesce(new.last_change_sequence_number, 2000000000000000))
        returning start into new.last_change_sequence_number;
        -- A snapshot from before every transaction. The current one would count this very
        -- transaction as finished, and lose what it may still publish.
        insert into changefeed.progress
            (feed_id, shard, last_change_sequence_number, sweep_id, snapshot)
        values (new.feed_id, new.shard, new.last_change_sequence_number, 0, '1:1:')
        returning swept_at into new.last_sweep_time;
        return new;
    elsif tg_op = 'UPDATE' then
        if (new.feed_id, new.shard, new.last_change_sequence_number)
           is distinct from (old.feed_id, old.shard, old.last_change_sequence_number) then
            raise exception 'changefeed: only sweep_group and longpoll of a shard can be changed'
                using errcode = 'feature_not_supported';
        end if;
        update changefeed.shard_definition d
        set sweep_group = new.sweep_group, longpoll = new.longpoll
        where d.feed_id = old.feed_id and d.shard = old.shard;
        return new;
    else
        if exists (select from changefeed.feed_source f
                   where f.feed_id = old.feed_id and f.kind = 'captured'
                     and old.shard >= f.first_shard and old.shard < f.first_shard + f.shards) then
            raise exception 'changefeed: feed % publishes to shard %, so it cannot be removed',
                old.feed_id, old.shard
                using errcode = 'object_in_use',
                      hint = 'Remove the whole feed: delete it from changefeed.feed.';
        end if;
        -- Waits for writers that have seen the shard, so that none of their rows stay behind
        -- for a later shard of the same number.
        perform changefeed.hold_inbox();
        delete from changefeed.shard_definition d
        where d.feed_id = old.feed_id and d.shard = old.shard;
        delete from changefeed.inbox_0 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.inbox_1 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.inbox_2 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.inbox_3 i where i.feed_id = old.feed_id and i.shard = old.shard;
        delete from changefeed.numbered n where n.feed_id = old.feed_id and n.shard = old.shard;
        return old;
    end if;
end $$;

create trigger shard_write instead of insert or update or delete on changefeed.shard
for each row execute function changefeed.shard_write();

-- The sweepers of the new group have not looked at what the old one has left over.
create function changefeed.shard_moved() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update changefeed.cluster set shards_moved = shards_moved + 1;
    return null;
end $$;

create trigger shard_moved after update of sweep_group on changefeed.shard_definition
for each statement execute function changefeed.shard_moved();

create function changefeed.feed_delete() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set client_min_messages = warning as $$
begin
    -- A trigger that publishes to a feed that is gone would fail the application's writes.
    execute format('drop function if exists changefeed.%I() cascade', 'capture_' || old.feed_id);
    delete from changefeed.feed_source f where f.feed_id = old.feed_id;
    delete from changefeed.shard s where s.feed_id = old.feed_id;
    return old;
end $$;

create trigger feed_delete before delete on changefeed.feed
for each row execute function changefeed.feed_delete();

-- Sweeping --------------------------------------------------------------------------------------

-- The transaction ids that are finished in `upto`, but were not in `since`, as ranges in ascending
-- order. Ids that are still at work are in none of them, so that nobody has to pass over the rows
-- of a large transaction that has not committed yet.
create function changefeed.finished_between(
    since pg_snapshot, upto pg_snapshot, out lows xid8[], out highs xid8[])
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    base  constant bigint := pg_snapshot_xmax(since)::text::bigint;
    bound constant bigint := pg_snapshot_xmax(upto)::text::bigint;
begin
    select array_agg(r.low::text::xid8 order by r.low), array_agg(r.high::text::xid8 order by r.low)
    into lows, highs
    from (
        select x::text::bigint as low, x::text::bigint as high from pg_snapshot_xip(since) x
        where pg_visible_in_snapshot(x, upto)
        union all
        -- What lies between those that are still at work.
        select coalesce(lag(w.x) over (order by w.x) + 1, base), w.x - 1
        from (
            select x::text::bigint as x from pg_snapshot_xip(upto) x where x::text::bigint >= base
            union all select bound
        ) w
    ) r
    where r.low <= r.high;
end $$;

-- The snapshot in which everything before `bound` is finished except for `working`.
create function changefeed.snapshot_of(bound xid8, working xid8[]) returns pg_snapshot
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    return (select format('%s:%s:%s', coalesce((array_agg(w.x order by w.x))[1], bound), bound,
                          string_agg(w.x::text, ',' order by w.x))
            from (select distinct x from unnest(working) x where x < bound) w)::pg_snapshot;
end $$;

-- The snapshot of a statement, with our own transaction among those that are at work, whatever its
-- snapshot says about itself: the caller may have published in it, or may still.
create function changefeed.without_us(seen pg_snapshot) returns pg_snapshot
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if pg_current_xact_id_if_assigned() < pg_snapshot_xmax(seen) then
        return changefeed.snapshot_of(pg_snapshot_xmax(seen),
            array(select pg_snapshot_xip(seen)) || pg_current_xact_id_if_assigned());
    end if;
    return seen;
end $$;

-- The oldest transaction that some snapshot may still count as unfinished: every snapshot shows what
-- was committed before it. Snapshots belong to sessions of this database (one that was exported, to
-- its exporter as well) and to standbys that tell of theirs, themselves or through their slots.
-- Prepared transactions have none. The `catalog_xmin` of a slot is about system tables only. Null
-- where a DBA has taken away what everybody may see by default.
create function changefeed.oldest_snapshot() returns xid8
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    latest bigint;
    oldest bigint;
begin
    -- Otherwise one transaction always sees the sessions of its first look.
    perform pg_stat_clear_snapshot();
    latest := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    select min(case when s.age > 2147483648 then latest else latest - s.age end) into oldest
    from (
        -- How many ids ago, by the 32 bits that are shown; one that began since is shown as ahead.
        select (latest % 4294967296 - h.xmin::text::bigint + 4294967296) % 4294967296 as age
        from (
            select a.backend_xmin as xmin from pg_stat_activity a
            where coalesce(a.datname, current_database()) = current_database()
              and a.backend_type is distinct from 'autovacuum worker'
            union all
            select r.xmin from pg_replication_slots r
        ) h
        where h.xmin is not null
    ) s;
    return coalesce(oldest, latest)::text::xid8;
exception when insufficient_privilege then
    return null;
end $$;

-- Truncates the segments in which no shard has anything new. Truncating is not undone for those who
-- look with an older snapshot, such as a dump that has not locked the segment yet: they would find
-- a row neither there nor numbered. So a segment is first remembered as drained, and truncated when
-- every snapshot is so new that it shows its numbers. Never waits for a lock, because writers would
-- queue behind the wait.
create function changefeed.tidy() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    -- Whether a segment has rows that the snapshot $1 did not show; $2 is our own transaction,
    -- which may be beyond the end of its own snapshots.
    newer   constant text :=
        'select exists (select from changefeed.finished_between($1, changefeed.snapshot_of( '
        'greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, $2 + 1)::text::xid8, '
        'array(select pg_snapshot_xip(pg_current_snapshot())))) f '
        'cross join lateral unnest(f.lows, f.highs) r(low, high) cross join lateral '
        '(select from changefeed.inbox_%s i where i.xid >= r.low and i.xid <= r.high limit 1) i)';
    me      constant bigint := pg_current_xact_id()::text::bigint;
    current constant integer := (pg_snapshot_xmax(pg_current_snapshot())::text::bigint >> 13) & 3;
    size    bigint;
    known   changefeed.inbox_segment;
    seen    pg_snapshot;
    busy    boolean;
begin
    for n in 0..3 loop
        size := pg_relation_size(format('changefeed.inbox_%s', n)::regclass);
        -- The segment that writers use now is left alone unless it has grown out of proportion.
        continue when size < case when n = current then 268435456 else 16777216 end;
        select s.* into strict known from changefeed.inbox_segment s where s.segment = n;
        busy := known.drained is null;
        if not busy then
            execute format(newer, n) into busy using known.drained, me;
        end if;
        if busy then
            execute format($q$
                select pg_current_snapshot(), exists (
                    select from changefeed.shard_definition d
                    cross join lateral (
                        select p.snapshot
                        from changefeed.progress p
                        where p.feed_id = d.feed_id and p.shard = d.shard
                        order by p.last_change_sequence_number desc, p.sweep_id desc
                        limit 1
                    ) p
                    where exists (select from changefeed.inbox_%1$s i
                                  where i.feed_id = d.feed_id and i.shard = d.shard
                                    and i.xid >= pg_snapshot_xmax(p.snapshot))
                       or exists (select from pg_snapshot_xip(p.snapshot) x
                                  cross join lateral (
                                      select from changefeed.inbox_%1$s i
                                      where i.feed_id = d.feed_id and i.shard = d.shard
                                        and i.xid = x
                                      offset 0) i)
                )$q$, n) into seen, busy;
            if not busy then
                -- The numbers may be our own, which nobody sees before we have committed.
                begin
                    perform from changefeed.inbox_segment s where s.segment = n for update nowait;
                    update changefeed.inbox_segment s
                    set drained = seen,
                        safe_at = greatest(pg_snapshot_xmax(seen)::text::bigint, me + 1)::text::xid8
                    where s.segment = n;
                exception when lock_not_available then
                    null;
                end;
            end if;
            continue;
        end if;
        continue when not coalesce(changefeed.oldest_snapshot() >= known.safe_at, false);
        begin
            execute format('lock table changefeed.inbox_%s in access exclusive mode nowait', n);
            -- With the lock held, every row is either committed and visible here, or dead.
            execute format(newer, n) into busy using known.drained, me;
            if not busy then
                execute format('truncate changefeed.inbox_%s', n);
            end if;
        exception when lock_not_available then
            null;
        end;
    end loop;
end $$;

-- Removes the inbox rows of a shard that have their numbers. Nobody needs them; they go when their
-- segment is truncated, or here, before the changes they became are trimmed: restamp() must not
-- take them for new ones.
create function changefeed.forget_numbered(of_feed smallint, of_shard smallint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off as $$
declare
    at changefeed.progress;
begin
    select p.* into strict at from changefeed.progress p
    where p.feed_id = of_feed and p.shard = of_shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1;
    for segment in 0..3 loop
        execute format('delete from changefeed.inbox_%s i where i.feed_id = $1 and i.shard = $2 '
                       'and (pg_visible_in_snapshot(i.xid, $3) or i.xid = $4 and i.change_id <= $5)',
                       segment)
        using of_feed, of_shard, at.snapshot, at.resume_xid, at.resume_after;
    end loop;
end $$;

-- After a dump was restored into another cluster, the transaction ids in the inbox belong to a
-- past life and cannot be compared with new ones. Every row that has no number yet is written
-- again under the current transaction, and counting starts from here.
create function changefeed.restamp() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    lock table changefeed.inbox_0, changefeed.inbox_1, changefeed.inbox_2, changefeed.inbox_3
        in access exclusive mode;
    perform from changefeed.shard_definition for update;
    create temporary table changefeed_restamp on commit drop as
    select i.feed_id, i.shard, i.change_id
    from changefeed.inbox i
    join changefeed.shard_definition d on d.feed_id = i.feed_id and d.shard = i.shard
    cross join lateral (
        select p.snapshot
        from changefeed.progress p
        where p.feed_id = d.feed_id and p.shard = d.shard
        order by p.last_change_sequence_number desc, p.sweep_id desc
        limit 1
    ) p
    where not exists (select from changefeed.numbered n
                      where n.feed_id = i.feed_id and n.shard = i.shard
                        and n.change_id = i.change_id)
      -- Numbered and trimmed in the past life; an id that this cluster has not reached yet can
      -- only be from there.
      and not (i.xid >= pg_snapshot_xmax(pg_current_snapshot())
               and pg_visible_in_snapshot(i.xid, p.snapshot));
    -- Not truncated: a dump whose snapshot is older would have them neither here nor numbered.
    delete from changefeed.inbox_0;
    delete from changefeed.inbox_1;
    delete from changefeed.inbox_2;
    delete from changefeed.inbox_3;
    update changefeed.inbox_segment set drained = null, safe_at = null;
    insert into changefeed.progress
        (feed_id, shard, last_change_sequence_number, sweep_id, snapshot)
    select distinct on (p.feed_id, p.shard)
           p.feed_id, p.shard, p.last_change_sequence_number, p.sweep_id + 1, '1:1:'::pg_snapshot
    from changefeed.progress p
    order by p.feed_id, p.shard, p.last_change_sequence_number desc, p.sweep_id desc;
    -- Not through the view, which refuses what is put into a closed shard: these were there before it was closed.
    perform changefeed.enter_change(r.feed_id, r.shard, r.change_id)
    from (select r.* from pg_temp.changefeed_restamp r order by r.change_id) r;
    drop table pg_temp.changefeed_restamp;
    update changefeed.cluster
    set system_identifier = (select s.system_identifier from pg_control_system() s);
end $$;

-- Numbers the news of one shard, in pieces that double, until the time has come or it has numbered
-- so many. Null when somebody else has locked the shard, or it does not exist in this group.
-- Called by sweep() only, under its settings.
create function changefeed.number_shard(
    of_feed smallint, of_shard smallint, of_group integer, since timestamptz, until timestamptz,
    most bigint, out changes bigint, out unfinished boolean, out lag_milliseconds bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    longpoll boolean;
    prev     changefeed.progress;
    next     changefeed.progress;
    now_at   pg_snapshot;
    upto     pg_snapshot;
    lows     xid8[];
    highs    xid8[];
    cut      xid8;
    piece    bigint := 1000;
    done     bigint;
    mark     timestamptz;
begin
    select d.longpoll into longpoll from changefeed.shard_definition d
    where d.feed_id = of_feed and d.shard = of_shard and d.sweep_group = of_group
    for no key update skip locked;
    if not found then
        unfinished := exists (select from changefeed.shard_definition d
                              where d.feed_id = of_feed and d.shard = of_shard
                                and d.sweep_group = of_group);
        return;
    end if;
    -- Only now, with the lock held, in a statement of its own: a snapshot from before the lock
    -- would show an old end and number changes twice.
    select p.* into strict prev
    from changefeed.progress p
    where p.feed_id = of_feed and p.shard = of_shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    limit 1;
    perform pg_current_xact_id();
    now_at := changefeed.without_us(pg_current_snapshot());
    next := prev;
    changes := 0;
    unfinished := true;
    while unfinished and (changes = 0 or changes < most and clock_timestamp() < until) loop
        if next.resume_xid is null then
            -- A piece is everything up to some transaction: who committed before another began has
            -- the lower id, so that order is kept.
            upto := now_at;
            select f.lows, f.highs into lows, highs
            from changefeed.finished_between(next.snapshot, upto) f;
            if lows is null then
                unfinished := false;
                exit;
            end if;
            select n.xid into cut
            from unnest(lows, highs) r(low, high)
            cross join lateral (select i.xid from changefeed.inbox i
                                where i.feed_id = of_feed and i.shard = of_shard
                                  and i.xid >= r.low and i.xid <= r.high
                                order by i.xid
                                offset 0) n
            offset piece limit 1;
            if cut is not null then
                -- What is finished before it, in addition to what has its numbers already.
                upto := changefeed.snapshot_of(
                    case when cut < pg_snapshot_xmax(next.snapshot)
                         then pg_snapshot_xmax(next.snapshot) else cut end,
                    array(select pg_snapshot_xip(now_at)) ||
                    array(select x from pg_snapshot_xip(next.snapshot) x where x >= cut));
                select f.lows, f.highs into lows, highs
                from changefeed.finished_between(next.snapshot, upto) f;
            end if;
            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            select of_feed, of_shard,
                   next.last_change_sequence_number + row_number() over (order by n.change_id),
                   n.change_id
            -- Range by range, so that the plan can only look them up in the index; a list became a
            -- filter over the whole shard in plans made for an empty inbox.
            from unnest(lows, highs) r(low, high)
            cross join lateral (select i.change_id from changefeed.inbox i
                                where i.feed_id = of_feed and i.shard = of_shard
                                  and i.xid >= r.low and i.xid <= r.high
                                offset 0) n;
            get diagnostics done = row_count;
            next.snapshot := upto;
            unfinished := cut is not null;
            if unfinished and done = 0 then
                -- This transaction alone is more than a piece.
                next.resume_xid := cut;
                next.resume_after := -9223372036854775808;
                continue;
            end if;
        else
            insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id)
            select of_feed, of_shard,
                   next.last_change_sequence_number + row_number() over (order by n.change_id),
                   n.change_id
            from (select i.change_id from changefeed.inbox i
                  where i.feed_id = of_feed and i.shard = of_shard and i.xid = next.resume_xid
                    and i.change_id > next.resume_after
                  order by i.change_id
                  -- With ties, so that an id that was used twice is not cut in half and lost.
                  fetch first piece rows with ties) n;
            get diagnostics done = row_count;
            if done >= piece then
                select n.change_id into strict next.resume_after
                from changefeed.numbered n
                where n.feed_id = of_feed and n.shard = of_shard
                  and n.change_sequence_number = next.last_change_sequence_number + done;
            else
                -- It is the first beyond the snapshot, or one that was at work in it.
                next.snapshot := changefeed.snapshot_of(
                    case when next.resume_xid < pg_snapshot_xmax(next.snapshot)
                         then pg_snapshot_xmax(next.snapshot)
                         else (next.resume_xid::text::bigint + 1)::text::xid8 end,
                    array(select x from pg_snapshot_xip(next.snapshot) x
                          where x <> next.resume_xid));
                next.resume_xid := null;
                next.resume_after := null;
            end if;
        end if;
        next.last_change_sequence_number := next.last_change_sequence_number + done;
        changes := changes + done;
        piece := least(piece * 2, 100000);
    end loop;
    -- Nothing new: nothing is written. The older snapshot does as well.
    if changes = 0 and prev.resume_xid is null then
        return;
    end if;

    insert into changefeed.progress
        (feed_id, shard, last_change_sequence_number, sweep_id, swept_at, snapshot, resume_xid,
         resume_after)
    values (of_feed, of_shard, next.last_change_sequence_number, prev.sweep_id + 1,
            case when changes > 0 then clock_timestamp() else prev.swept_at end,
            next.snapshot, next.resume_xid, next.resume_after);
    -- Keep about one row a second, for the age of a number.
    select p.swept_at into mark
    from changefeed.progress p
    where p.feed_id = of_feed and p.shard = of_shard
    order by p.last_change_sequence_number desc, p.sweep_id desc
    offset 2 limit 1;
    if changes = 0 or mark > clock_timestamp() - interval '1 second' then
        delete from changefeed.progress p
        where p.feed_id = of_feed and p.shard = of_shard
          and p.last_change_sequence_number = prev.last_change_sequence_number
          and p.sweep_id = prev.sweep_id;
    end if;
    if longpoll and changes > 0 then
        perform pg_notify('changefeed', format('%s/%s/%s', of_feed, of_shard,
                                               next.last_change_sequence_number));
    end if;
    -- A ceiling: the time since the shard was last swept, or last found empty by this session.
    lag_milliseconds := ceil(extract(epoch from clock_timestamp()
                                     - greatest(prev.swept_at, since)) * 1000);
end $$;

-- What a session remembers between two sweeps of a group. Shards are written as one number,
-- feed_id * 65536 + shard + 32768. A hint: what is wrong here is found late, and never numbered
-- wrongly.
create type changefeed.sweep_memory as (
    swept_at   timestamptz,
    -- News were looked for up to here.
    seen       pg_snapshot,
    moved      bigint,
    -- All shards are looked at one by one: since when, how far, and whether there is a hurry.
    round_at   timestamptz,
    round_to   integer,
    hurry      boolean,
    -- There was too much news to find its shards while this round was at work: another one follows.
    once_more  boolean,
    -- Shards that have to be visited again: left over or locked; and larger than one call.
    waiting    integer[],
    larger     integer[],
    -- From when on these were not known to be empty.
    behind_at  timestamptz,
    tidied_at  timestamptz
);

-- Numbers what is committed in a group, once. Any number of sweeps may run at the same time:
-- each locks the shards it works on and leaves those alone that another one has locked.
--
-- A call is bounded, in changes and in time, and below a statement_timeout that may be set; what is
-- left over is for the next one. Which shards have news is found by transaction id, starting from
-- the snapshot of the previous look. That snapshot is kept by the session, so that a sweep which
-- finds nothing writes nothing. A session without such a memory looks at every shard one by one.
--
-- A caller that compares snapshots itself, and calls this only after something was committed, says when
-- nothing had been: the lag is counted from there.
create function changefeed.sweep(sweep_group integer default 0, quiet_at timestamptz default null)
returns table (feed_id smallint, shard smallint, change_count bigint, lag_milliseconds bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Plans are made once per session, perhaps while the inbox is empty: they must not scan it whole.
-- Made for each call anew they would cost more than an idle sweep itself.
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- The most changes of one call, and of one look for shards with news.
    most     constant bigint := 100000;
    look     constant integer := 20000;
    -- The most of one shard while others wait for their turn.
    turn     constant bigint := 10000;
    -- How many shards are looked at one by one in one go, and how often, for safety's sake.
    stretch  constant integer := 500;
    every    constant interval := interval '60 seconds';
    swept    constant integer := coalesce(sweep.sweep_group, 0);
    setting  constant text := 'changefeed.swept_' || replace(swept::text, '-', '_');
    memory   changefeed.sweep_memory := nullif(current_setting(setting, true), '')::changefeed.sweep_memory;
    began    constant timestamptz := clock_timestamp();
    patience constant interval := current_setting('statement_timeout');
    -- The last piece may take as long as all before it, so this is half of the time there is.
    until    timestamptz := began + interval '500 milliseconds';
    moved    bigint;
    seen     pg_snapshot;
    lows     xid8[];
    highs    xid8[];
    known    integer;
    queue    integer[];
    missed   integer[] := '{}';
    again    integer[] := '{}';
    at       integer;
    since    timestamptz;
    one      record;
    total    bigint := 0;
    before   bigint;
    repeated boolean := false;
    rounds   integer := 0;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'changefeed: sweep needs the isolation level read committed, not %',
            current_setting('transaction_isolation')
            using errcode = 'feature_not_supported',
                  hint = 'A snapshot older than the lock would number changes twice.';
    end if;
    -- A number that was read by somebody must not be given again after a crash.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if (select c.system_identifier from changefeed.cluster c)
       is distinct from (select c.system_identifier from pg_control_system() c) then
        perform changefeed.restamp();
    end if;
    if patience > interval '0' then
        until := least(until, began + (statement_timestamp() + patience - began) / 4);
    end if;

    -- In a statement of its own: what is finished here, the next statement sees.
    select changefeed.without_us(pg_current_snapshot()), c.shards_moved into seen, moved
    from changefeed.cluster c;
    queue := coalesce(memory.waiting, '{}');
    since := memory.behind_at;
    memory.swept_at := greatest(memory.swept_at, least(quiet_at, began));
    if memory.seen is not null and memory.moved = moved then
        select f.lows, f.highs into lows, highs from changefeed.finished_between(memory.seen, seen) f;
        if lows is not null then
            -- Those with little news first.
            select coalesce(sum(n.count), 0), queue || coalesce(array_agg(n.at order by n.count), '{}')
            into known, queue
            from (
                select i.feed_id * 65536 + i.shard + 32768 as at, count(*) as count
                from (
                    select i.feed_id, i.shard
                    from unnest(lows, highs) r(low, high)
                    cross join lateral (select i.feed_id::integer, i.shard::integer
                                        from changefeed.inbox i
                                        where i.xid >= r.low and i.xid <= r.high
                                        offset 0) i
                    limit look
                ) i
                group by i.feed_id, i.shard
            ) n;
        end if;
    end if;
    if known >= look and memory.round_to is not null and memory.hurry then
        memory.once_more := true;
    elsif memory.seen is null or memory.moved <> moved or known >= look then
        memory.round_at := began;
        memory.round_to := -2147483648;
        memory.hurry := true;
    elsif memory.round_to is null
          -- A clock that was set back is no reason to wait.
          and began not between memory.round_at and memory.round_at + every then
        memory.round_at := began;
        memory.round_to := -2147483648;
        memory.hurry := false;
    end if;
    memory.seen := seen;
    memory.moved := moved;

    loop
        before := total;
        foreach at in array queue loop
            if total >= most or total > 0 and clock_timestamp() >= until then
                if repeated then
                    again := again || at;
                else
                    missed := missed || at;
                end if;
                continue;
            end if;
            select n.* into one
            from changefeed.number_shard((at >> 16)::smallint, ((at & 65535) - 32768)::smallint,
                swept, coalesce(since, memory.swept_at), until,
                case when cardinality(queue) > 1 then least(turn, most - total)
                     else most - total end) n;
            if one.changes is null then
                -- Somebody else has it.
                if one.unfinished then
                    missed := missed || at;
                end if;
                continue;
            end if;
            if one.unfinished then
                again := again || at;
            end if;
            if one.changes > 0 then
                total := total + one.changes;
                feed_id := at >> 16;
                shard := (at & 65535) - 32768;
                change_count := one.changes;
                lag_milliseconds := one.lag_milliseconds;
                return next;
            end if;
        end loop;
        exit when total >= most or clock_timestamp() >= until and rounds > 0;
        if memory.round_to is not null and (memory.hurry or rounds = 0) then
            rounds := rounds + 1;
            select case when count(*) < stretch then null else max(d.at) end,
                   coalesce(array_agg(d.at order by d.at) filter (where d.news), '{}')
            into memory.round_to, queue
            from (
                select d.feed_id * 65536 + d.shard + 32768 as at,
                       p.resume_xid is not null
                       or exists (select from changefeed.inbox i
                                  where i.feed_id = d.feed_id and i.shard = d.shard
                                    and i.xid >= pg_snapshot_xmax(p.snapshot))
                       or exists (select from pg_snapshot_xip(p.snapshot) x
                                  cross join lateral (
                                      select from changefeed.inbox i
                                      where i.feed_id = d.feed_id and i.shard = d.shard and i.xid = x
                                      offset 0) i) as news
                from (select d.feed_id::integer, d.shard::integer from changefeed.shard_definition d
                      where d.sweep_group = swept
                        and (d.feed_id, d.shard) > ((memory.round_to >> 16)::smallint,
                                                    ((memory.round_to & 65535) - 32768)::smallint)
                      order by d.feed_id, d.shard
                      limit stretch) d
                cross join lateral (
                    select p.snapshot, p.resume_xid
                    from changefeed.progress p
                    where p.feed_id = d.feed_id and p.shard = d.shard
                    order by p.last_change_sequence_number desc, p.sweep_id desc
                    limit 1
                ) p
            ) d;
            if memory.round_to is null and memory.once_more then
                memory.round_to := -2147483648;
                memory.once_more := false;
            end if;
        elsif cardinality(memory.larger) > 0 then
            queue := memory.larger;
            memory.larger := '{}';
        elsif cardinality(again) > 0 and total > before and clock_timestamp() < until then
            -- Everybody had a turn: those with more to number have another.
            repeated := true;
            queue := again;
            again := '{}';
        else
            exit;
        end if;
    end loop;

    -- Those that were not reached go first the next time, also before others with little news; not
    -- those that had their turn.
    memory.waiting := array(select w.at from unnest(missed || memory.larger) w(at)
                            where w.at <> all (again));
    memory.larger := again;
    if cardinality(memory.waiting) > 5000 then
        memory.waiting := '{}';
        memory.seen := null;
    end if;
    memory.behind_at := case when cardinality(memory.waiting || memory.larger) = 0 then null
                             else coalesce(memory.behind_at, memory.swept_at, began) end;
    memory.swept_at := began;
    if total > 0 and (memory.tidied_at is null or began not between memory.tidied_at
                      and memory.tidied_at + interval '200 milliseconds') then
        memory.tidied_at := began;
        perform changefeed.tidy();
    end if;
    perform set_config(setting, memory::text, false);
end $$;

-- Leases ----------------------------------------------------------------------------------------

create table changefeed.lease (
    name             text primary key,
    owner            text not null,
    generation       bigint not null,
    -- Grows whenever the lease is granted or renewed.
    renewal          bigint not null default 1,
    ttl_milliseconds integer not null,
    expires_at       timestamptz not null
);

-- Takes a lease that is free or expired, or renews it for the same owner; null while somebody
-- else holds it, together with the renewal that was seen. The clock is the database's. It may have
-- been set back, and then a dead owner's lease would seem to last: whoever has seen one and the
-- same renewal for longer than its time, by a clock of their own, says which, and takes that.
create function changefeed.hold_lease(
    lease_name text, lease_owner text, ttl_milliseconds integer, stale_renewal bigint,
    out generation bigint, out renewal bigint, out held_for integer)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    insert into changefeed.lease as l (name, owner, generation, ttl_milliseconds, expires_at)
    values (lease_name, lease_owner, 1, hold_lease.ttl_milliseconds,
            clock_timestamp() + hold_lease.ttl_milliseconds * interval '1 millisecond')
    on conflict (name) do update
    set owner = excluded.owner,
        generation = case when l.owner = excluded.owner and l.expires_at > clock_timestamp()
                          then l.generation else l.generation + 1 end,
        renewal = l.renewal + 1,
        ttl_milliseconds = excluded.ttl_milliseconds,
        -- By the time now, and not when we began to wait for the row: a newer call of the same owner may
        -- have been granted more meanwhile.
        expires_at = clock_timestamp() + excluded.ttl_milliseconds * interval '1 millisecond'
    where l.owner = excluded.owner or l.expires_at <= clock_timestamp()
       or l.renewal = stale_renewal
    returning l.generation into hold_lease.generation;
    if not found then
        select l.renewal, l.ttl_milliseconds into hold_lease.renewal, hold_lease.held_for
        from changefeed.lease l where l.name = lease_name;
    end if;
end $$;

-- The same for those who may sweep and have no rights on the table: leases of sweep groups, and none
-- that outlives its owner by much.
create function changefeed.take_lease(
    lease_name text, lease_owner text, ttl_milliseconds integer, stale_renewal bigint default null,
    out generation bigint, out renewal bigint, out held_for integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if lease_name !~ '^sweep/-?[0-9]{1,5}$' or ttl_milliseconds not between 1 and 60000
       or num_nulls(lease_name, lease_owner, ttl_milliseconds) > 0 then
        raise exception 'changefeed: take_lease is for sweep groups, such as sweep/0, and for 1 to 60000 milliseconds'
            using errcode = 'invalid_parameter_value',
                  hint = 'Renew the lease before it ends instead of taking it for longer.';
    end if;
    select h.* into generation, renewal, held_for
    from changefeed.hold_lease(lease_name, lease_owner, ttl_milliseconds, stale_renewal) h;
end $$;

-- Gives a lease of a sweep group back. The row stays: its generation must go on growing.
create function changefeed.free_lease(lease_name text, lease_owner text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update changefeed.lease set expires_at = clock_timestamp()
    where name = lease_name and owner = lease_owner and name ~ '^sweep/';
$$;

-- Sweeps until the duration has passed. Of any number of callers one works per group, together
-- with the changefeed program under the same lease; the others wait to take over, and return
-- with zeros if they could not within wait_milliseconds. A procedure, because a function would
-- show nothing to anybody before it ends.
create procedure changefeed.sweep_loop(
    sweep_group                integer default 0,
    wait_milliseconds          integer default 30000,
    duration_milliseconds      integer default 50000,
    sleep_milliseconds         integer default 20,
    inout change_count         bigint default null,
    inout max_lag_milliseconds bigint default null,
    inout iterations           bigint default null
)
language plpgsql as $$
declare
    -- A row, not a lock: a client that freezes would keep the lock.
    ttl       constant integer := 1000;
    lease     text;
    holder    text;
    -- Until when to wait for the lease, and once it was had, until when to work.
    deadline  timestamptz;
    -- A statement_timeout would end the call without a result.
    latest    timestamptz;
    -- The renewal that we wait for to end, how long it may last, and for how many naps of ours it has
    -- done so: they are counted, so that no clock has to be believed.
    renewal   bigint;
    held_for  integer;
    naps      integer := 0;
    taken     record;
    found_now bigint;
    lag_now   bigint;
begin
    -- For the time of a transaction, and so again after every commit: a procedure that commits can have no path
    -- of its own, and the caller's may lead to anybody's operators.
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    lease := 'sweep/' || sweep_group;
    holder := format('sweep_loop/%s/%s', pg_backend_pid(), clock_timestamp());
    deadline := clock_timestamp() + coalesce(wait_milliseconds, 30000) * interval '1 millisecond';
    latest := statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') * 0.8;
    if sweep_group is null or least(wait_milliseconds, duration_milliseconds, sleep_milliseconds) < 0
    then
        raise exception 'changefeed: sweep_loop needs a sweep group, and no time may be negative'
            using errcode = 'invalid_parameter_value';
    end if;
    change_count := 0;
    max_lag_milliseconds := 0;
    iterations := 0;
    loop
        select * into taken from changefeed.take_lease(lease, holder, ttl,
            case when naps * 200 > held_for * 1.5 then renewal end);
        if taken.generation is null then
            commit;
            perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            if pg_catalog.clock_timestamp() >= least(deadline, latest) then
                return;
            end if;
            naps := case when taken.renewal = renewal then naps + 1 else 0 end;
            renewal := taken.renewal;
            held_for := taken.held_for;
            -- Short naps instead of one long wait for a lock, which would hold back vacuum.
            perform pg_catalog.pg_sleep(least(0.2, greatest(0.001,
                extract(epoch from deadline - pg_catalog.clock_timestamp()))));
            continue;
        end if;
        commit;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        if iterations = 0 then
            deadline := pg_catalog.clock_timestamp()
                        + coalesce(duration_milliseconds, 50000) * interval '1 millisecond';
        end if;
        select coalesce(sum(s.change_count), 0), coalesce(max(s.lag_milliseconds), 0)
        into found_now, lag_now
        from changefeed.sweep(sweep_group) s;
        commit;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        change_count := change_count + found_now;
        max_lag_milliseconds := greatest(max_lag_milliseconds, lag_now);
        iterations := iterations + 1;
        exit when pg_catalog.clock_timestamp() >= least(deadline, latest);
        -- A full sweep has left something over.
        if found_now < 100000 then
            perform pg_catalog.pg_sleep(coalesce(sleep_milliseconds, 20) / 1000.0);
        end if;
    end loop;
    perform changefeed.free_lease(lease, holder);
    commit;
end $$;

-- Rows behind captured changes ------------------------------------------------------------------

-- What happened (I insert, U update, D delete, B backfill, T truncate), and the primary key of the row that
-- a captured change is about: a JSON array of texts, in key order; null for T. Text is the one form that
-- every type can be written to and read back from. Feeds with images also keep the row before and after.
-- The feed is part of it, because whoever may publish can enter any change_id into any feed: one of
-- another feed means nothing there.
create table changefeed.change_row (
    change_id bigint primary key,
    feed_id   smallint not null,
    op        "char" not null,
    key       jsonb,
    old       json,
    new       json
);

-- The shard of a value; documented in docs/feeds.md, the same on every database.
-- It is inlined into triggers that run with our rights under the writer's search path, so every
-- operator and type is spelt with its schema.
create function changefeed.shard_of(value bigint, shards integer) returns smallint
language sql immutable parallel safe as $$
    select coalesce(
        ((value operator(pg_catalog.%) shards::pg_catalog.int8)
         operator(pg_catalog.+) shards::pg_catalog.int8)
        operator(pg_catalog.%) shards::pg_catalog.int8, 0::pg_catalog.int8)::pg_catalog.int2
$$;

create function changefeed.shard_of(value text, shards integer) returns smallint
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    bytes bytea := convert_to(value, 'UTF8');
    total bigint := 0;
begin
    if value is null then
        return 0;
    end if;
    for i in 1 .. least(length(bytes), 255) loop
        total := total + get_byte(bytes, i - 1)::bigint * ((i * i * 7919) % 65521);
    end loop;
    return (((total * 40503) % 4294967296) >> 12) % shards;
end $$;

-- Enters a change of a captured table. An insert into the view would look for the shard, and a
-- writer's snapshot may be older than the feed: the write would fail. The trigger is there no longer
-- than the feed and its shards, so nothing has to be looked for. Like change_insert(), it has no
-- `set search_path`. True, so that it can be a condition.
create function changefeed.enter_change(feed_id smallint, shard smallint, change_id bigint)
returns boolean
language plpgsql as $$
declare
    writer  pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    segment pg_catalog.int4 := ((writer::pg_catalog.text::pg_catalog.int8)
                                operator(pg_catalog.>>) 13) operator(pg_catalog.&) 3;
begin
    if segment operator(pg_catalog.=) 0 then
        insert into changefeed.inbox_0 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    elsif segment operator(pg_catalog.=) 1 then
        insert into changefeed.inbox_1 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    elsif segment operator(pg_catalog.=) 2 then
        insert into changefeed.inbox_2 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    else
        insert into changefeed.inbox_3 (feed_id, shard, change_id, xid)
        values (enter_change.feed_id, enter_change.shard, enter_change.change_id, writer);
    end if;
    return true;
end $$;

-- The last four say which version of which row was replaced by which; they are looked at when triggers of the
-- application have written inside of the statement, see event_place().
create function changefeed.publish_row(
    feed_id smallint, shard smallint, op "char", key jsonb, old json default null, new json default null,
    source oid default null, old_version tid default null, old_writer xid default null,
    new_version tid default null)
returns void
language plpgsql as $$
declare
    id pg_catalog.int8;
begin
    if pg_catalog.pg_trigger_depth() operator(pg_catalog.>) 1
       or pg_catalog.current_setting('changefeed.nested', true) operator(pg_catalog.<>) '' then
        id := changefeed.event_place(
            (-100000) operator(pg_catalog.-) feed_id, source, old_version, old_writer, new_version, shard);
    else
        id := pg_catalog.nextval('changefeed.change_id');
    end if;
    insert into changefeed.change_row (change_id, feed_id, op, key, old, new)
    values (id, publish_row.feed_id, publish_row.op, publish_row.key, publish_row.old, publish_row.new);
    -- Whichever number this change has got, the one that was drawn for it is the new one.
    perform changefeed.enter_change(publish_row.feed_id, publish_row.shard,
                                    pg_catalog.currval('changefeed.change_id'));
end $$;

-- Tables as they are now --------------------------------------------------------------------------
--
-- A query of the catalogue sees it as the caller's snapshot does: under REPEATABLE READ that is how
-- a table was before somebody altered it, while the rows that a trigger is given are of today. A
-- trigger that believed such a query would treat a value of somebody's own type as one of the
-- server's, and run their functions with our rights; or it would not find a column that was
-- renamed. So nothing here depends on a query of the catalogue where it matters: the names are had
-- by functions that look into the server's caches, which are always current, and the types from the
-- parser. What a type is may come from a query, because it does not change; one that is too new to be seen
-- is somebody's own.

-- A table in this cluster, as no other cluster has it.
create function changefeed.place_of(source oid) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select (select s.system_identifier from pg_control_system() s) || '/' || source
$$;

-- The columns, with their numbers and types.
create function changefeed.columns_now(
    source oid, out place smallint, out name text, out type oid)
returns setof record
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    numbers smallint[] := '{}';
    names   text[] := '{}';
    types   oid[];
    number  smallint := 0;
begin
    begin
        loop
            number := number + 1;
            name := (pg_identify_object_as_address('pg_class'::regclass, source, number))
                    .object_names[3];
            exit when name is null;
            -- Null for what was dropped. Asked about everybody, because one who may use the whole table
            -- is not told.
            continue when has_column_privilege('public', source, number, 'references') is null;
            numbers := numbers || number;
            names := names || name;
        end loop;
    exception when others then
        -- PostgreSQL 13 says so when there is no such column. Variables keep what they have.
        null;
    end;
    -- All columns at once: asked for one by one, each of them makes a copy of the whole row type.
    execute format('select array[%s]::oid[] from (select (null::%s).*) r', (
        select string_agg(format('pg_typeof(r.%I)', n), ', ' order by o)
        from unnest(names) with ordinality u(n, o)), source::regclass) into types;
    return query select u.p, u.n, u.t from unnest(numbers, names, types) u(p, n, t);
end $$;

-- The name that a column has now which had this name and number in a table of this place; null if
-- it was dropped. A dump that is restored numbers columns anew, so elsewhere the name counts.
create function changefeed.column_now(of_place text, number smallint, name text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    source oid := split_part(of_place, '/', 2)::oid;
begin
    if of_place is distinct from changefeed.place_of(source) or number is null then
        return name;
    end if;
    if has_column_privilege('public', source, number, 'references') is null then
        return null;
    end if;
    return (pg_identify_object_as_address('pg_class'::regclass, source, number)).object_names[3];
end $$;

-- The columns of the primary key, in its order; none if there is none.
create function changefeed.key_now(source regclass) returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    key   oid;
    names text[] := '{}';
begin
    -- By default the primary key is what a replica knows a row by.
    if exists (select from pg_class c where c.oid = source and c.relreplident = 'd') then
        key := pg_get_replica_identity_index(source);
    end if;
    if key is null then
        select x.indexrelid into key from pg_index x where x.indrelid = source and x.indisprimary;
    end if;
    -- What an index merely includes is not in order.
    while pg_index_column_has_property(key, cardinality(names) + 1, 'orderable') loop
        names := names || (parse_ident(pg_get_indexdef(key, cardinality(names) + 1, false)))[1];
    end loop;
    return names;
end $$;

-- The type beneath a domain.
create function changefeed.base_type(type oid) returns oid
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    beneath oid := type;
    kind    "char";
    next    oid;
begin
    loop
        select t.typtype, t.typbasetype into kind, next from pg_type t where t.oid = beneath;
        exit when kind is distinct from 'd';
        beneath := next;
    end loop;
    return beneath;
end $$;

-- The shard of a row $1 by one of its columns, as an expression.
create function changefeed.shard_expression(row_name text, column_name text, type oid, shards integer)
returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select case
        when column_name is null then '0::pg_catalog.int2'
        when changefeed.base_type(type) in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then
            format('changefeed.shard_of(%s.%I::pg_catalog.int8, %s)', row_name, column_name, shards)
        else format('changefeed.shard_of(pg_catalog.format(''%%s'', %s.%I), %s)',
                    row_name, column_name, shards)
    end
$$;

-- Key and shard of a row of a captured table that was altered: slower than the trigger itself, but
-- nothing is lost. The key is that of the columns that the feed was made with, whatever the primary key is by
-- now: readers find rows by them. It never fails: a row whose key is gone has an empty one. The settings are those
-- that shape texts.
create function changefeed.row_place(
    source regclass, changed anyelement, of_place text, key_numbers smallint[], key_names text[],
    shard_number smallint, shard_name text, shards integer, out key jsonb, out shard smallint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as $$
declare
    column_name text;
    type        oid;
begin
    begin
        execute (
            select format('select jsonb_build_array(%s)',
                string_agg(format('format(''%%s'', ($1).%I)', changefeed.column_now(of_place, k.number, k.name)),
                           ', ' order by k.place))
            from unnest(key_numbers, key_names) with ordinality k(number, name, place))
        into key using changed;
    exception when others then
        raise warning 'changefeed: a change of % has no key: %', source, sqlerrm;
    end;
    begin
        column_name := changefeed.column_now(of_place, shard_number, shard_name);
        if column_name is not null then
            execute format('select pg_typeof(($1).%I)::oid', column_name) into type using changed;
            execute 'select ' || changefeed.shard_expression('($1)', column_name, type, shards)
            into shard using changed;
        end if;
    exception when others then
        raise warning 'changefeed: a change of % goes to shard 0: %', source, sqlerrm;
    end;
    key := coalesce(key, '[]');
    shard := coalesce(shard, 0);
end $$;

-- Consumers -------------------------------------------------------------------------------------

create table changefeed.consumer (
    name       varchar(100) not null check (name ~ '^[a-zA-Z0-9_-]+$'),
    feed_id    smallint not null,
    shard      smallint not null,
    -- Text, because other kinds of feeds have other kinds of cursors.
    cursor     text not null check (cursor ~ '^[0-9]{1,18}$'),
    updated_at timestamptz not null default clock_timestamp(),
    primary key (name, feed_id, shard),
    foreign key (feed_id, shard) references changefeed.shard_definition on delete cascade
);

create function changefeed.consumer_touch() returns trigger
language plpgsql as $$
begin
    new.updated_at := pg_catalog.clock_timestamp();
    return new;
end $$;

create trigger consumer_touch before update on changefeed.consumer
for each row execute function changefeed.consumer_touch();

-- Subscriptions ---------------------------------------------------------------------------------

-- The changes of a feed are pushed to a sink. The position is the cursor of the consumer of the same name.
create table changefeed.subscription (
    name       varchar(100) primary key check (name ~ '^[a-zA-Z0-9_-]+$'),
    feed_id    smallint not null references changefeed.feed on delete cascade,
    -- What it pushes where, as JSON.
    definition text not null,
    -- Why it is paused.
    paused     text,
    created_at timestamptz not null default clock_timestamp()
);

-- Where each of its shards stands. Whoever works on one holds the lease push/NAME/SHARD.
create table changefeed.subscription_shard (
    name       varchar(100) not null references changefeed.subscription on delete cascade,
    shard      smallint not null,
    -- The lease's generation: an older one cannot move the position.
    generation bigint not null default 0,
    -- Raised when a person has it begin elsewhere; part of message ids.
    epoch      integer not null default 0,
    -- What the sink held of this epoch when the position was stored.
    held       text check (held ~ '^[0-9A-Z]{1,26}$'),
    -- Why it was stopped.
    stopped    text,
    sent       bigint not null default 0,
    lost       bigint not null default 0,
    parked     bigint not null default 0,
    primary key (name, shard)
);

-- Changes that a sink refused and that were left out.
create table changefeed.subscription_parked (
    name       varchar(100) not null references changefeed.subscription on delete cascade,
    shard      smallint not null,
    epoch      integer not null,
    cursor     text not null check (cursor ~ '^[0-9A-Z]{1,26}$'),
    reason     text not null,
    parked_at  timestamptz not null default clock_timestamp(),
    primary key (name, shard, epoch, cursor)
);

-- Nothing of this is for everybody; `docs/postgres.md` has the grants for writers, readers and
-- sweepers.
revoke all on all functions in schema changefeed from public;
revoke all on all procedures in schema changefeed from public;
