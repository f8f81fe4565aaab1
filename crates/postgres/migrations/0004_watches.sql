-- changefeed 4: watches on PostgreSQL.
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
    columns    boolean not null default false
);

create table changefeed.watch (
    name        varchar(100) primary key check (name ~ '^[a-zA-Z0-9_-]+$'),
    function_id text not null unique check (function_id ~ '^[0-9a-f]{16}$'),
    table_id    bigint not null references changefeed.watched_table,
    -- What `changefeed serve` runs; null for a function that runs elsewhere.
    definition  jsonb,
    -- Whether it wants to know which columns were changed.
    columns     boolean not null default false,
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

-- Keys as texts --------------------------------------------------------------------------------------

-- The key of a row, by the catalogue, in a form that does not depend on the writer's settings.
create function changefeed.row_key(source regclass, changed anyelement) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as $$
declare
    key   jsonb;
    query text := changefeed.key_query(source);
begin
    if query is not null then
        execute query into key using changed;
    end if;
    return key;
exception when others then
    raise warning 'changefeed: a change of % is not noted: %', source, sqlerrm;
    return null;
end $$;

-- Whether a text can be read as a value of one of the server's own types. For keys of before their
-- column got another type.
create function changefeed.readable(value text, type regtype) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    execute format('select $1::%s', type) using value;
    return true;
exception when others then
    return false;
end $$;

-- Reading the table ----------------------------------------------------------------------------------

-- A table can only be read by its name, and whoever may rename it can put something else behind that
-- name: another table, or a view, whose functions would run with a worker's rights. So whoever reads
-- one locks it, makes sure of what was locked, and says in the statement of which table the rows have
-- to be.

-- Makes sure that a table is locked, is a table, and has the columns that it had.
create function changefeed.hold_table(source oid, signature text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select from pg_locks l
                   where l.pid = pg_backend_pid() and l.locktype = 'relation'
                     and l.relation = source and l.granted)
       or not exists (select from pg_class c where c.oid = source and c.relkind in ('r', 'p'))
       or changefeed.table_signature(source) is distinct from signature then
        raise exception 'the table was altered' using errcode = 'undefined_table';
    end if;
end $$;

-- Given a row and a parameter of the row type of the right table, known by its number, a statement
-- with this is refused when it is parsed, if it is about another table. Nothing casts to anyelement.
create function changefeed.same_row(found anyelement, wanted anyelement) returns boolean
language sql immutable as 'select true';

-- The clock ------------------------------------------------------------------------------------------

-- The latest time that was seen on the server's clock.
create table changefeed.clock (
    singleton boolean primary key default true check (singleton),
    latest    timestamptz not null default clock_timestamp(),
    -- The last step back, while events of before it may still have to be brought back.
    step_to   timestamptz,
    step      interval
);
insert into changefeed.clock default values;

-- Looks whether the clock was set back, and if so, brings back what lies ahead only because of that:
-- events and rows that are due, and leases of owners that may be dead, would wait for as long as the
-- step was. Returns how far back the clock went, in milliseconds, to whoever noticed. Any number may
-- call it at the same time, and again when it is unknown whether it was done.
create function changefeed.keep_time(out stepped bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Events that are brought back by one call.
    batch  constant integer := 20000;
    known  changefeed.clock;
    now_at timestamptz := clock_timestamp();
    far    timestamptz;
    leases regclass;
    done   bigint;
begin
    select c.* into known from changefeed.clock c;
    if known.step is null and now_at between known.latest - interval '5 seconds'
                                         and known.latest + interval '10 seconds' then
        return;
    end if;
    select c.* into known from changefeed.clock c for update skip locked;
    if not found then
        return;
    end if;
    now_at := clock_timestamp();
    if now_at < known.latest - interval '5 seconds' then
        known.step_to := now_at;
        known.step := known.latest - now_at;
        -- What is held since the step, is held for less.
        far := now_at + known.step / 2;
        update changefeed.lease l set expires_at = l.expires_at - known.step
        where l.expires_at > far;
        -- What was to come after the step, and what somebody holds.
        update changefeed.event e set due_at = e.due_at - known.step
        where e.ctid = any (array(
            select e.ctid from changefeed.event_trigger t
            join changefeed.event e on e.trigger_id = t.trigger_id and e.due_at > far
            where e.due_at > now_at + known.step or e.locked_by is not null
            for update of e skip locked));
        for leases in
            select c.oid::regclass from pg_class c
            where c.relnamespace = 'changefeed'::regnamespace and c.relkind = 'r'
              and c.relname ~ '^leases_[0-9a-f]{16}_[0-9]+$'
        loop
            begin
                execute format(
                    'update %1$s q set
                         _changefeed_lease_expiration_time = q._changefeed_lease_expiration_time
                             - case when q._changefeed_lease_expiration_time > $1 then $2
                                    else interval ''0'' end,
                         _changefeed_retry_time = q._changefeed_retry_time
                             - case when q._changefeed_retry_time > $1 then $2
                                    else interval ''0'' end
                     where q.ctid = any (array(
                         select q.ctid from %1$s q
                         where q._changefeed_lease_expiration_time > $1
                            or q._changefeed_retry_time > $1
                         for update skip locked))', leases) using far, known.step;
            exception when undefined_table or undefined_column or insufficient_privilege then
                null;
            end;
        end loop;
        stepped := (extract(epoch from known.step) * 1000)::bigint;
    end if;
    if known.step is not null then
        -- What was due before the step already; there may be a great many of them.
        update changefeed.event e set due_at = e.due_at - known.step
        where e.ctid = any (array(
            select e.ctid from changefeed.event_trigger t
            join changefeed.event e on e.trigger_id = t.trigger_id
                and e.due_at > now_at and e.due_at <= known.step_to + known.step
            where e.locked_by is null
            limit batch
            for update of e skip locked));
        get diagnostics done = row_count;
        if done < batch then
            known.step := null;
        end if;
    end if;
    update changefeed.clock c set latest = now_at, step_to = known.step_to, step = known.step;
end $$;

revoke all on all functions in schema changefeed from public;

insert into changefeed.schema_version (version) values (4);
