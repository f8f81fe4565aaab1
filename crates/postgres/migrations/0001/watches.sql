-- changefeed: watches on PostgreSQL.
--
-- How a changed row gets to a function:
--   1. A row trigger on the watched table inserts the row's key into `changes_<table_id>`. That is
--      all that a writer does, and nobody but writers inserts there: no writer ever waits for a
--      worker, meets it in a deadlock, or fails because of one at any isolation level.
--   2. A worker moves committed keys to the backlog of each function that watches the table,
--      `leases_<function_id>_<table_id>`: one row per key, however often it has changed. The keys
--      get their version here. Whoever writes to the backlogs of a table holds the table's
--      advisory lock from before its snapshot until its commit, so versions become visible in
--      their order, and "everything above the last one" misses nothing.
--   3. A batch is leased by one update, handed over, and deleted from the backlog when it is done.
--
-- Nothing is held between two calls: each of these steps is one message to the server.
--
-- A snapshot that somebody holds for hours keeps dead rows and index entries alive. Workers begin
-- their looks behind what they have seen: in `changes_...` by transaction id, in the backlog by
-- version.

-- The version of a change is drawn when it is moved. Each value begins a range of 2^20 versions, so
-- that one draw is enough for everything that is moved at a time.
create sequence changefeed.change_version as bigint increment 1048576 start 1048576 cache 1;
-- Receivers of webhooks tell batches apart by their versions: those of another database, or of this one
-- before it was installed anew, are others. So the first one is by the time, and by chance.
select setval('changefeed.change_version',
              (extract(epoch from clock_timestamp()) * 1000)::bigint * 1048576
              + (random() * 1048575)::bigint);

-- One number per leased batch, on all tables: a lease never comes back under the same number.
create sequence changefeed.lease_generation as bigint cache 1;

-- Tables that are tracked because somebody watches them.
create table changefeed.watched_table (
    -- The table's oid, as it was when tracking began.
    table_id   bigint primary key,
    -- The same as a name, which survives a dump.
    source     regclass not null,
    -- Grows when functions come and go. Whoever moves changes must know all of them.
    generation bigint not null default 1,
    -- The primary key that the tables of this table were made for.
    key        text[] not null,
    -- With the types that they have in our tables, and their numbers.
    key_types  text[] not null,
    key_places smallint[] not null,
    -- Whether the columns that were changed are noted, because some function wants to know them.
    columns    boolean not null default false,
    -- Whether rows are noted as they were before.
    before     boolean not null default false
);

create table changefeed.watch (
    name        varchar(100) primary key check (name ~ '^[a-zA-Z0-9_-]+$'),
    function_id text not null unique check (function_id ~ '^[0-9a-f]{16}$'),
    table_id    bigint not null references changefeed.watched_table,
    -- What `changefeed serve` runs; null for a function that runs elsewhere.
    definition  jsonb,
    -- Whether it wants to know which columns were changed.
    columns     boolean not null default false,
    -- Whether it wants to know what rows were before.
    before      boolean not null default false,
    -- How many unprocessed changes one worker is good for.
    max_changes_per_worker integer not null default 1000 check (max_changes_per_worker > 0),
    -- While existing rows are still to be handed over: the key of the last one, a JSON array of
    -- texts, and null before the first.
    loading     boolean not null default false,
    loaded_to   jsonb,
    created_at  timestamptz not null default clock_timestamp()
);

create table changefeed.global_state (
    function_id       text not null,
    table_id          bigint not null,
    -- Every change up to this version has been processed or parked. Kept about once a second.
    last_sync_version bigint not null default 0,
    last_access_time  timestamptz not null default clock_timestamp(),
    primary key (function_id, table_id)
);

-- Somebody has truncated a backlog: the next start of its function says so, and so does this.
create function changefeed.backlog_truncated() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    raise warning 'changefeed: what waited in %.% is lost; `changefeed watch reset --from beginning` hands over all rows',
        tg_table_schema, tg_table_name;
    delete from changefeed.global_state s
    where format('leases_%s_%s', s.function_id, s.table_id) = tg_table_name;
    return null;
exception when undefined_table then
    return null;
end $$;

-- Waiting ------------------------------------------------------------------------------------------

-- Returns when some transaction has committed since the snapshot `seen`, as text, or after about so many
-- milliseconds. One session of each instance waits here for its sweepers and all of its watches. A snapshot changes whenever a
-- transaction that has written ends, and not before others see what it has done; an idle database costs
-- a few sleeps. Nothing is held: each sleep is a transaction of its own, so that vacuum is not held back. The
-- sleeps are counted, so that no clock has to be believed. A procedure that commits can have no path of its own,
-- so every operator and type is spelt with its schema.
create procedure changefeed.await_commit(seen text, sleep_milliseconds integer, limit_milliseconds integer)
language plpgsql as $$
declare
    sleep pg_catalog.float8 := sleep_milliseconds::pg_catalog.float8 operator(pg_catalog./) 1000.0::pg_catalog.float8;
begin
    for turn in 1 .. limit_milliseconds operator(pg_catalog./) sleep_milliseconds loop
        perform pg_catalog.pg_sleep(sleep);
        commit;
        exit when pg_catalog.pg_current_snapshot()::pg_catalog.text operator(pg_catalog.<>) seen;
    end loop;
end $$;

-- Counting -----------------------------------------------------------------------------------------

-- What a function still has to process. Counts what nobody has moved yet too, so that it also
-- tells when no worker is left to do that.
create function changefeed.watch_count(
    function_id text, out unprocessed bigint, out leased bigint, out parked bigint,
    out last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    keys text;
    log  regclass;
    mine regclass;
begin
    select (select string_agg(quote_ident(k), ', ') from unnest(t.key) k),
           to_regclass(format('changefeed.changes_%s', w.table_id)),
           to_regclass(format('changefeed.leases_%s_%s', w.function_id, w.table_id))
    into keys, log, mine
    from changefeed.watch w join changefeed.watched_table t on t.table_id = w.table_id
    where w.function_id = watch_count.function_id;
    unprocessed := 0;
    leased := 0;
    parked := 0;
    if mine is null then
        return;
    end if;
    execute format(
        'select count(*) filter (where _changefeed_parked_time is null),
                count(*) filter (where _changefeed_lease_expiration_time > clock_timestamp()),
                count(*) filter (where _changefeed_parked_time is not null),
                (array_agg(_changefeed_last_error order by _changefeed_change_version desc)
                 filter (where _changefeed_last_error is not null))[1]
         from %s', mine)
    into unprocessed, leased, parked, last_error;
    if log is not null then
        execute format(
            'select $1 + count(*) + (select count(*) from %2$s where _changefeed_raw is not null)
             from (
                 select %1$s from %2$s where _changefeed_raw is null
                 except select %1$s from %3$s where _changefeed_parked_time is null) n',
            keys, log, mine)
        into unprocessed using unprocessed;
    end if;
end $$;

-- For people and for autoscalers: `select unprocessed from changefeed.watch_backlog where name = ...`.
-- Each function has a view with the same for itself in one row, backlog_<function_id>.
create view changefeed.watch_backlog as
select w.name, w.function_id, w.table_id, c.unprocessed, c.leased, c.parked, c.last_error,
       ceil(c.unprocessed::numeric / w.max_changes_per_worker)::bigint as suggested_workers
from changefeed.watch w cross join lateral changefeed.watch_count(w.function_id) c;
