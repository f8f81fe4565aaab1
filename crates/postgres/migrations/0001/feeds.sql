-- changefeed: feeds on PostgreSQL 13 and later.
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
-- in a schema of the path of whoever runs this, so it is fixed for all files of this migration.
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
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    -- Asked for every page, and functions in SQL are planned with every call.
    return (select i.incarnation from changefeed.incarnation i order by i.number desc limit 1);
end $$;

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
    -- Whether a table is captured into it, so that it may be closed one day: see change_insert().
    captured      boolean not null default false,
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
-- shards with news. It is over a number, so that no statement about one shard can be planned with it: such a plan
-- passes over whatever other shards have in the inbox, once for each shard.
create index on changefeed.inbox_0 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_1 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_2 (feed_id, shard, xid, change_id);
create index on changefeed.inbox_3 (feed_id, shard, xid, change_id);
create index inbox_0_xid_idx on changefeed.inbox_0 ((xid::text::bigint));
create index inbox_1_xid_idx on changefeed.inbox_1 ((xid::text::bigint));
create index inbox_2_xid_idx on changefeed.inbox_2 ((xid::text::bigint));
create index inbox_3_xid_idx on changefeed.inbox_3 ((xid::text::bigint));

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
              and d.shard operator(pg_catalog.=) new.shard and not d.captured;
        elsif segment operator(pg_catalog.=) 1 then
            insert into changefeed.inbox_1 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.captured;
        elsif segment operator(pg_catalog.=) 2 then
            insert into changefeed.inbox_2 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.captured;
        else
            insert into changefeed.inbox_3 (feed_id, shard, change_id, xid)
            select d.feed_id, d.shard, new.change_id, writer from changefeed.shard_definition d
            where d.feed_id operator(pg_catalog.=) new.feed_id
              and d.shard operator(pg_catalog.=) new.shard and not d.captured;
        end if;
        if found then
            return new;
        end if;
        -- Whoever publishes by hand into a shard that may be closed keeps it from being closed until the end of its
        -- transaction. Without waiting: whoever changes the number of shards may be waiting for us. Under REPEATABLE
        -- READ the lock fails if that was done after our snapshot was taken; otherwise the next statement sees it.
        perform from changefeed.feed_source f
        where f.feed_id operator(pg_catalog.=) new.feed_id for share skip locked;
        if found then
            if exists (select from changefeed.shard_definition d
                       where d.feed_id operator(pg_catalog.=) new.feed_id
                         and d.shard operator(pg_catalog.=) new.shard and d.captured and not d.closed) then
                perform changefeed.enter_change(new.feed_id, new.shard, new.change_id);
                return new;
            end if;
        elsif exists (select from changefeed.feed_source f
                      where f.feed_id operator(pg_catalog.=) new.feed_id) then
            raise exception 'changefeed: the shards of feed % are being changed', new.feed_id
                using errcode = 'serialization_failure', hint = 'Roll back and try again.';
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
