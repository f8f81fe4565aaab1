-- changefeed 4: watches on PostgreSQL.
-- Older programs: running instances may continue; older versions can no longer start.
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

-- Waiting ------------------------------------------------------------------------------------------

-- Returns when some transaction has committed since the snapshot `seen`, as text, or after about so many
-- milliseconds. One session of each instance waits here for all of its watches. A snapshot changes whenever a
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

-- Keys as texts --------------------------------------------------------------------------------------

-- The names that columns of a table have now, whatever the snapshot of the transaction shows: a query
-- of the catalogue goes by the snapshot, and a writer's may be from before an ALTER TABLE. This
-- function of the server goes by its caches, which are current.
create function changefeed.column_names(source oid, places smallint[]) returns text[]
language sql stable set search_path = pg_catalog, pg_temp as $$
    select array_agg((pg_identify_object_as_address('pg_class'::regclass, source, p.number)).object_names[3]
                     order by p.place)
    from unnest(places) with ordinality p(number, place)
$$;

-- The key of a row, in a form that does not depend on the writer's settings. `format` calls a type's
-- own output function and never a cast, which may be anybody's.
create function changefeed.row_key(source oid, places smallint[], changed anyelement) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as $$
declare
    key jsonb;
begin
    execute (select format('select jsonb_build_array(%s)',
                           string_agg(format('format(''%%s'', ($1).%I)', n.name), ', ' order by n.place))
             from unnest(changefeed.column_names(source, places)) with ordinality n(name, place))
    into key using changed;
    return key;
exception when others then
    raise warning 'changefeed: a change of % is not noted: %', source::regclass, sqlerrm;
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

-- Makes sure that a table is locked, is a table, has the columns that it had, and runs nobody's code with
-- our rights.
create function changefeed.hold_table(source oid, signature text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    problem text;
    advice  text;
begin
    if not exists (select from pg_locks l
                   where l.pid = pg_backend_pid() and l.locktype = 'relation'
                     and l.relation = source and l.granted)
       or not exists (select from pg_class c where c.oid = source and c.relkind in ('r', 'p'))
       or changefeed.table_signature(source) is distinct from signature then
        raise exception 'the table was altered' using errcode = 'undefined_table';
    end if;
    select u.problem, u.advice into problem, advice from changefeed.unreadable(source) u;
    if problem is not null then
        raise exception 'changefeed: %', problem
            using errcode = case when row_security_active(source) then 'CF106' else 'CF105' end, hint = advice;
    end if;
end $$;

-- Given a row and a parameter of the row type of the right table, known by its number, a statement
-- with this is refused when it is parsed, if it is about another table. Nothing casts to anyelement.
create function changefeed.same_row(found anyelement, wanted anyelement) returns boolean
language sql immutable as 'select true';

-- The rows of feeds -----------------------------------------------------------------------------------

-- A page of a feed is one call, in a transaction of its own. It locks the table, makes sure of what was
-- locked as told above, makes the query by the catalogue as it is under that lock, and executes it. It is
-- made anew for each page: nothing that is kept about a table can be out of date, and no plan is older
-- than what it reads. Rows are read with the rights of whoever reads.
--
-- What would run code of the table's owner with these rights, and how it is kept out:
--   * casts, and checks of domains: values go through output functions of the server's own types only
--     (safe_value), keys are compared as values of the type beneath, by the operators of an index, and a
--     text is read by the input function of its type, as a literal;
--   * views, and rules: only tables and materialized views are read;
--   * policies: row_security is off, which makes them an error;
--   * functions in indexes and statistics, which the planner runs if their arguments are constants: those
--     that belong to somebody else are refused. Should one slip in after the check, it finds a transaction
--     that cannot write.

-- Whether reading a value of a type from its text would run what somebody has made: the check of a domain
-- within an array or a range, say.
create function changefeed.runs_code(type oid) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from pg_type t left join pg_type e on e.oid = t.typelem
        where t.oid = changefeed.base_type(type) and t.typnamespace <> 'pg_catalog'::regnamespace
          and (t.typtype not in ('b', 'e') or t.typcategory = 'A' and e.typtype not in ('b', 'e')))
$$;

-- Columns of a table by their numbers: the type beneath by schema and name, or null if it is not one of the
-- server's own; and the operators of a unique index over just these columns, or null if there is none, or if
-- reading a value would run code.
create function changefeed.key_columns(source oid, numbers smallint[])
returns table (place bigint, name text, type text, equal text, greater text)
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    classes oid[];
begin
    select array(select x.indclass[array_position(x.indkey::smallint[], n)]
                 from unnest(numbers) with ordinality k(n, place) order by k.place)
    into classes
    from pg_index x
    where x.indrelid = source and x.indisunique and x.indisvalid and x.indpred is null
      and x.indnkeyatts = cardinality(numbers)
      and (x.indkey::smallint[])[0:x.indnkeyatts - 1] @> numbers
    order by x.indisprimary desc, x.indexrelid
    limit 1;
    return query
    select k.place, a.attname::text,
           case when t.typnamespace = 'pg_catalog'::regnamespace then format('pg_catalog.%I', t.typname) end,
           (select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname)
            from pg_amop p join pg_operator o on o.oid = p.amopopr
            where p.amopfamily = c.opcfamily and p.amoplefttype = c.opcintype
              and p.amoprighttype = c.opcintype and p.amopstrategy = 3),
           (select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname)
            from pg_amop p join pg_operator o on o.oid = p.amopopr
            where p.amopfamily = c.opcfamily and p.amoplefttype = c.opcintype
              and p.amoprighttype = c.opcintype and p.amopstrategy = 5)
    from unnest(numbers, classes) with ordinality k(number, class, place)
    left join pg_attribute a on a.attrelid = source and a.attnum = k.number
        and a.attnum > 0 and not a.attisdropped
    left join pg_type t on t.oid = changefeed.base_type(a.atttypid)
    left join pg_opclass c on c.oid = k.class and not changefeed.runs_code(a.atttypid)
    order by k.place;
end $$;

-- The numbers of the columns by which a feed finds the row of a captured change; null for one that was dropped.
create function changefeed.key_numbers(source changefeed.feed_source) returns smallint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
    if source.key_of = changefeed.place_of(source.source) then
        return source.key_places;
    end if;
    return array(select a.attnum from unnest(source.key_names) with ordinality k(name, place)
                 left join pg_attribute a on a.attrelid = source.source and a.attname = k.name
                 order by k.place);
end $$;

-- Why the rows of captured changes cannot be found any more, and what to do about it; null if they can.
create function changefeed.lost_key(of_feed smallint, out problem text, out advice text)
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    source changefeed.feed_source;
    k      record;
begin
    select f.* into source from changefeed.feed_source f where f.feed_id = of_feed;
    for k in select c.* from changefeed.key_columns(source.source, changefeed.key_numbers(source)) c loop
        if k.name is null then
            problem := format('the rows behind feed ''%s'' cannot be found any more: column %I of %s, which they were '
                              'known by, was dropped', changefeed.feed_name(of_feed), source.key_names[k.place], source.source);
            advice := 'drop the feed and make it again: its key is another one now';
            return;
        elsif exists (select from pg_attribute a where a.attrelid = source.source
                        and a.attname = k.name and changefeed.runs_code(a.atttypid)) then
            problem := format('the rows behind feed ''%s'' cannot be found: reading a value of column %I of %s would run '
                              'code of whoever made its type', changefeed.feed_name(of_feed), k.name, source.source);
            advice := 'give that column a type of the server, an enum, or a domain over these';
            return;
        elsif k.equal is null then
            problem := format('the rows behind feed ''%s'' cannot be found any more: %s has no primary key and no unique '
                              'index with just the columns that they were known by (%s)', changefeed.feed_name(of_feed), source.source,
                              (select string_agg(format('%I', n), ', ') from unnest(source.key_names) n));
            advice := 'make such an index, or drop the feed and make it again with the key of now';
            return;
        end if;
    end loop;
end $$;

-- Why the rows of a table cannot be read by whoever asks, as one sentence, and what to do about it; null if
-- they can.
create function changefeed.unreadable(source oid, out problem text, out advice text)
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    kind  "char" := (select c.relkind from pg_class c where c.oid = source);
    found record;
begin
    if kind not in ('r', 'p', 'm') then
        problem := format('%s is a %s, whose functions would run with the rights of whoever reads',
            source::regclass, case kind when 'v' then 'view' when 'f' then 'foreign table'
                                        else 'relation of another kind' end);
        advice := 'make the feed from the table itself';
        return;
    end if;
    if row_security_active(source) then
        problem := format('row-level security hides rows of %s from %I', source::regclass, current_user);
        advice := format('alter role %I bypassrls, or read as a role that no policy applies to', current_user);
        return;
    end if;
    -- Nearly every table is done here: what follows takes long to look up.
    if not exists (select from pg_index x
                   where x.indrelid = source and (x.indexprs is not null or x.indpred is not null))
       and not exists (select from pg_statistic_ext s where s.stxrelid = source)
       and kind <> 'p' then
        return;
    end if;
    -- Of what inherits from it, only partitions are read.
    if kind = 'p' then
        select c.oid::regclass as name into found
        from pg_partition_tree(source) p join pg_class c on c.oid = p.relid
        where c.relkind = 'f' limit 1;
        if found is not null then
            problem := format('partition %s of %s is a foreign table, whose functions and server would be used '
                              'with the rights of %I', found.name, source::regclass, current_user);
            advice := 'detach that partition, or make the feed from a partition that is a table';
            return;
        end if;
    end if;
    with recursive tree as (
        select source as oid, kind as relkind
        union all
        select i.inhrelid, c.relkind
        from tree t join pg_inherits i on t.relkind = 'p' and i.inhparent = t.oid
        join pg_class c on c.oid = i.inhrelid
    )
    select o.what, f.name, f.owner into found
    from (
        select d.refclassid, d.refobjid, format('index %s', x.indexrelid::regclass) as what
        from tree t join pg_index x on x.indrelid = t.oid and (x.indexprs is not null or x.indpred is not null)
        join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = x.indexrelid
        union all
        select d.refclassid, d.refobjid, format('partition key of %s', t.oid::regclass)
        from tree t join pg_partitioned_table p on p.partrelid = t.oid
        join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = t.oid
        union all
        select d.refclassid, d.refobjid, format('statistics %I', s.stxname)
        from tree t join pg_statistic_ext s on s.stxrelid = t.oid
        join pg_depend d on d.classid = 'pg_statistic_ext'::regclass and d.objid = s.oid
    ) o
    join (
        select 'pg_proc'::regclass::oid as class, p.oid, p.oid::regprocedure::text as name, p.proowner as owner
        from pg_proc p
        union all
        select 'pg_operator'::regclass, p.oid, p.oid::regoperator::text, p.oprowner from pg_operator p
    ) f on f.class = o.refclassid and f.oid = o.refobjid
    join pg_roles r on r.oid = f.owner
    where not r.rolsuper and not pg_has_role(f.owner, (select me.oid from pg_roles me where me.rolname = current_role), 'member')
    limit 1;
    if found is not null then
        problem := format('the %s of %s uses %s, which belongs to %s and would run with the rights of %I',
            found.what, source::regclass, found.name, found.owner::regrole, current_user);
        advice := 'let a superuser own that function, or drop what uses it';
    end if;
end $$;

-- Locks the table behind a feed for reading, makes sure of what was locked, and returns its name for a
-- query. Each step is a statement of its own, which sees what the one before has waited for.
create function changefeed.hold_source(source oid, row_type oid) returns text
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    name    text;
    kind    "char";
    problem text;
    advice  text;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'changefeed: rows of feeds are read in transactions that are read committed'
            using errcode = 'invalid_transaction_state';
    end if;
    select format('%I.%I', n.nspname, c.relname) into name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = source and c.reltype = row_type;
    if name is null then
        raise exception 'changefeed: the table was replaced by another one at this moment'
            using errcode = 'CF104', hint = 'try again';
    end if;
    if not has_table_privilege(source, 'select') then
        raise exception 'changefeed: % may not read %', quote_ident(current_user), source::regclass
            using errcode = 'insufficient_privilege',
                  hint = format('grant select on %s to %I', source::regclass, current_user);
    end if;
    execute format('lock table only %s in access share mode', name);
    select c.relkind into kind
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = source and format('%I.%I', n.nspname, c.relname) = name
      and exists (select from pg_locks l
                  where l.pid = pg_backend_pid() and l.locktype = 'relation'
                    and l.relation = source and l.granted);
    if kind is null then
        raise exception 'changefeed: the table was replaced by another one at this moment'
            using errcode = 'CF104', hint = 'try again';
    end if;
    select u.problem, u.advice into problem, advice from changefeed.unreadable(source) u;
    if problem is not null then
        raise exception 'changefeed: %', problem
            using errcode = case when row_security_active(source) then 'CF106' else 'CF105' end, hint = advice;
    end if;
    -- What inherits from a table is not captured with it; what is in its partitions is.
    return case kind when 'p' then name else 'only ' || name end;
end $$;

-- The condition of the row that a captured change is about, with places for literals if these are wanted, as
-- `format` fills them. Null if a column is of somebody's own type, for which there have to be literals.
create function changefeed.key_condition(source changefeed.feed_source, literals boolean) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    k         record;
    problem   text;
    advice    text;
    condition text;
begin
    for k in select c.* from changefeed.key_columns(source.source, changefeed.key_numbers(source)) c loop
        if k.equal is null then
            select l.problem, l.advice into problem, advice from changefeed.lost_key(source.feed_id) l;
            raise exception 'changefeed: %', problem using errcode = 'CF105', hint = advice;
        elsif literals then
            condition := concat_ws(' and ', condition,
                replace(format('t.%I %s ', k.name, k.equal), '%', '%%') || '%L');
        elsif k.type is null then
            return null;
        else
            condition := concat_ws(' and ', condition,
                format('t.%I %s (r.key ->> %s)::%s', k.name, k.equal, k.place - 1, k.type));
        end if;
    end loop;
    return condition;
end $$;

-- The key of a captured change as a JSON object, as an expression over the stored key: its columns have the names
-- of now, and their values are written as in rows. Those of somebody's own type are texts; so are all if
-- they do not fit their types any more.
create function changefeed.key_object(source changefeed.feed_source, key text, texts boolean) returns text
language sql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
    select format('(select row_to_json(k.*)::text from (select %s) k)', string_agg(
        format(case when k.type is null or texts then '%s ->> %s as %I' else '(%s ->> %s)::%4$s as %3$I' end,
               key, k.place - 1, coalesce(k.name, source.key_names[k.place]), k.type), ', ' order by k.place))
    from changefeed.key_columns(source.source, changefeed.key_numbers(source)) k
$$;

-- The columns of a row as safe_columns gives them, but by the catalogue: who reads holds the table and has a
-- snapshot of its own, and this is done for every page. It waits for no lock of the table.
create function changefeed.page_columns(source oid, alias text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
    return (
        select coalesce(string_agg(
            case when t.typnamespace = 'pg_catalog'::regnamespace then format('%s.%I', alias, a.attname)
                 else changefeed.safe_value(format('%s.%I', alias, a.attname), a.atttypid) end
            || format(' as %I', a.attname), ', ' order by a.attnum), '')
        from pg_attribute a
        join pg_type t on t.oid = a.atttypid
        where a.attrelid = source and a.attnum > 0 and not a.attisdropped);
end $$;

-- A page of a feed with its rows or events: after the changes comes one row more, which has no change_id
-- but the number to go on from, and says in `kind` whether there is more right now and in `op` which life of the
-- database this is. Kinds of changes: u unknown,
-- g gone, r the row as it is now (in "new"), i its images. `op` and `key` are those of captured changes, and `op`
-- that of events. `wanted` is null, of the row
-- type of the table behind the feed, which the caller knows by its number: see same_row.
--
-- At least one change, and then as many as fit into a number of bytes: rows are made one after the other, and no
-- more of them than that.
create function changefeed.page(
    of_feed smallint, of_shard smallint, after bigint, "limit" integer, bytes integer, wanted anyelement)
returns table (change_sequence_number bigint, change_id bigint, kind text, op text, key text, old text, new text)
language plpgsql set search_path = pg_catalog, pg_temp set row_security = off
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
set max_parallel_workers_per_gather = 0 set constraint_exclusion = off set lock_timeout = '5s'
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres' set extra_float_digits = 1
set bytea_output = 'hex' as $$
#variable_conflict use_variable
declare
    numbers bigint[];
    ids     bigint[];
    more    boolean;
    query   text;
    single  text;
    source  changefeed.feed_source;
    table_  text;
    rows    text;
    clause  text;
    stored  record;
    -- The same query with keys as texts, for one that does not fit its column any more.
    spare   text;
    -- The key as a condition with places for literals, and when to leave the rest to the next page.
    form    text;
    until   timestamptz;
    at      integer := 1;
    size    bigint;
    total   bigint := 0;
    last    bigint;
begin
    select array_agg(r.change_sequence_number), array_agg(r.change_id) into numbers, ids
    from changefeed.next_changes(of_feed, of_shard, after, "limit" + 1) r;
    if numbers is null then
        change_sequence_number := coalesce(after, (
            select d.trimmed_to from changefeed.shard_definition d
            where d.feed_id = of_feed and d.shard = of_shard));
        kind := case when changefeed.is_over(of_feed, of_shard, change_sequence_number) then 'closed' else 'end' end;
        op := changefeed.incarnation();
        return next;
        return;
    end if;
    more := cardinality(numbers) > "limit";
    if more then
        numbers := numbers[:"limit"];
        ids := ids[:"limit"];
    end if;
    select f.* into source from changefeed.feed_source f where f.feed_id = of_feed;
    -- Everything is looked up row by row, in subqueries with a limit: a join is planned by statistics, and
    -- those of a table that has just been filled say that it is empty.
    if source.kind = 'events' then
        query := 'select p.number, p.id, case when e.op is null then ''g'' else ''i'' end, e.op::text, null,
                         e.old::text, e.new::text
                  from unnest($1, $2) p(number, id)
                  left join lateral (select e.op, e.old, e.new from changefeed.event e
                                     where e.change_id = p.id and e.feed_id = $4 limit 1) e on true';
    elsif source.images and not exists (
              select from unnest(ids) i(id)
              cross join lateral (select from changefeed.change_row r
                                  where r.change_id = i.id and r.feed_id = of_feed and r.op in ('I', 'U', 'B')
                                    and r.old is null and r.new is null
                                  limit 1) r) then
        -- All of it is here: the table itself is not looked at.
        query := 'select p.number, p.id, case when r.op is null then ''u'' else ''i'' end, r.op::text,
                         case when jsonb_array_length(r.key) = %s then %s end, r.old::text, r.new::text
                  from unnest($1, $2) p(number, id)
                  left join lateral (select r.op, r.key, r.old, r.new from changefeed.change_row r
                                     where r.change_id = p.id and r.feed_id = $4 limit 1) r on true';
        spare := format(query, cardinality(source.key_names), changefeed.key_object(source, 'r.key', true));
        query := format(query, cardinality(source.key_names), changefeed.key_object(source, 'r.key', false));
    elsif source.source is null then
        query := 'select p.number, p.id, ''u'', null, null, null, null from unnest($1, $2) p(number, id)';
    else
        table_ := changefeed.hold_source(source.source, pg_typeof(wanted));
        perform set_config('transaction_read_only', 'on', true);
        rows := format('(select row_to_json(changefeed_row.*)::text
                         from (select %s from %s t where changefeed.same_row(t.*, $3) and %%s limit 1) changefeed_row)',
                       replace(changefeed.page_columns(source.source, 't'), '%', '%%'),
                       replace(table_, '%', '%%'));
        single := format('select %s from unnest($1, $2) p(number, id)', rows);
        if source.kind = 'joined' then
            query := format('select p.number, p.id, ''r'', null, null, null, %s from unnest($1, $2) p(number, id)',
                            format(rows, changefeed.change_id_condition(source)));
        else
            clause := changefeed.key_condition(source, false);
            if clause is not null then
                query := format('select p.number, p.id,
                                        case when k.images then ''i'' when k.known or r.op = ''T'' then ''r'' else ''u'' end,
                                        r.op::text, case when k.known then %s end, r.old::text,
                                        case when k.images then r.new::text when k.known and r.op <> ''D'' then %s end
                                 from unnest($1, $2) p(number, id)
                                 left join lateral (select r.op, r.key, r.old, r.new from changefeed.change_row r
                                                    where r.change_id = p.id and r.feed_id = $4 limit 1) r on true
                                 cross join lateral (select jsonb_array_length(r.key) = %s as known,
                                                            num_nonnulls(r.old, r.new) > 0 as images) k',
                                changefeed.key_object(source, 'r.key', false), format(rows, clause),
                                cardinality(source.key_names));
            end if;
        end if;
    end if;
    while query is not null loop
        begin
            for change_sequence_number, change_id, kind, op, key, old, new
            in execute query using numbers[at:], ids[at:], wanted, of_feed loop
                size := coalesce(octet_length(key), 0) + coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0);
                if at > 1 and total + size > bytes then
                    more := true;
                    numbers := numbers[:at - 1];
                    exit;
                end if;
                if new is null and kind = 'r' then
                    kind := 'g';
                end if;
                return next;
                total := total + size;
                last := change_sequence_number;
                at := at + 1;
            end loop;
        exception when data_exception then
            -- A key is no value of its column's type any more. The others are read all the same.
            if single is null and spare is null then
                raise;
            end if;
        end;
        query := spare;
        spare := null;
        exit when at > cardinality(numbers);
    end loop;
    -- One by one: what could not be read at once, and keys of somebody's own type. Each is a statement of
    -- its own, so that time bounds a page as well.
    until := clock_timestamp() + interval '2 seconds';
    while at <= cardinality(numbers) loop
        if at > 1 and clock_timestamp() > until then
            more := true;
            exit;
        end if;
        change_sequence_number := numbers[at];
        change_id := ids[at];
        key := null;
        select r.op, r.key, r.old, r.new into stored
        from changefeed.change_row r where r.change_id = ids[at] and r.feed_id = of_feed;
        op := stored.op::text;
        old := stored.old::text;
        new := stored.new::text;
        if jsonb_array_length(stored.key) <> cardinality(source.key_names) then
            stored.key := null;
        end if;
        if stored.key is not null then
            begin
                execute 'select ' || changefeed.key_object(source, '$1', false) into key using stored.key;
            exception when data_exception then
                execute 'select ' || changefeed.key_object(source, '$1', true) into key using stored.key;
            end;
        end if;
        if stored.key is not null and stored.op <> 'D' and num_nonnulls(old, new) = 0 then
            begin
                if form is null then
                    form := changefeed.key_condition(source, true);
                end if;
                execute format(single, format(form, variadic array(
                    select k.value from jsonb_array_elements_text(stored.key) with ordinality k(value, place)
                    order by k.place)))
                into new using numbers[at:at], ids[at:at], wanted;
            exception when data_exception then
                if at > 1 then
                    more := true;
                    exit;
                end if;
                raise exception 'changefeed: the row of change % of feed ''%'' cannot be found: its key % does not fit the key of % any more (%)',
                    numbers[at], changefeed.feed_name(of_feed), stored.key, source.source, sqlerrm
                    using errcode = 'CF105',
                          hint = format('Whether that row is gone is not known. Go on behind it, from cursor %s, '
                                        'or drop the feed and make it again.', numbers[at]);
            end;
        end if;
        kind := case when num_nonnulls(stored.old, stored.new) > 0 then 'i'
                     when stored.key is null and op is distinct from 'T' then 'u'
                     when new is null then 'g' else 'r' end;
        size := coalesce(octet_length(key), 0) + coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0);
        if at > 1 and total + size > bytes then
            more := true;
            exit;
        end if;
        return next;
        total := total + size;
        last := change_sequence_number;
        at := at + 1;
    end loop;
    change_sequence_number := last;
    change_id := null;
    kind := case when more then 'more'
                 when changefeed.is_over(of_feed, of_shard, last) then 'closed' else 'end' end;
    op := changefeed.incarnation();
    key := null;
    old := null;
    new := null;
    return next;
end $$;

-- The condition of a row that a change of a joined feed is about.
create function changefeed.change_id_condition(source changefeed.feed_source) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    type oid := (select changefeed.base_type(a.atttypid) from pg_attribute a
                 where a.attrelid = source.source and a.attname = source.change_id_column
                   and a.attnum > 0 and not a.attisdropped);
begin
    if type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then
        return format('t.%I operator(pg_catalog.=) p.id', source.change_id_column);
    elsif type = 'numeric'::regtype then
        return format('t.%I operator(pg_catalog.=) p.id::pg_catalog.numeric', source.change_id_column);
    end if;
    raise exception 'changefeed: the rows behind feed ''%'' cannot be found: column "%" of % %',
        changefeed.feed_name(source.feed_id), source.change_id_column, source.source,
        case when type is null then 'is not there any more' else 'does not hold integers' end
        using errcode = 'CF105', hint = 'Drop the feed and make it again with the column that has the change_id.';
end $$;

-- A page of a feed that is ordered by ULIDs, with the same last row, whose `new` says which life this is. `after` is null for what is to come:
-- then there is only that row.
create function changefeed.ulid_page(
    of_feed smallint, of_shard integer, after bytea, "limit" integer, bytes integer, wanted anyelement)
returns table (ulid bytea, kind text, new text)
language plpgsql set search_path = pg_catalog, pg_temp set row_security = off
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
set max_parallel_workers_per_gather = 0 set constraint_exclusion = off set lock_timeout = '5s'
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres' set extra_float_digits = 1
set bytea_output = 'hex' as $$
#variable_conflict use_variable
declare
    source changefeed.feed_source;
    table_ text;
    form   text;
    value  text;
    at     integer := 1;
    size   bigint;
    total  bigint := 0;
    last   bytea := after;
    more   boolean := false;
begin
    select f.* into strict source from changefeed.feed_source f where f.feed_id = of_feed;
    table_ := changefeed.hold_source(source.source, pg_typeof(wanted));
    perform set_config('transaction_read_only', 'on', true);
    if not exists (select from pg_attribute a
                   where a.attrelid = source.source and a.attname = source.shard_column and a.attnum > 0
                     and changefeed.base_type(a.atttypid)
                         in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)) then
        raise exception 'changefeed: column "%" of %, the shard of feed ''%'', does not hold integers any more',
            source.shard_column, source.source, changefeed.feed_name(of_feed) using errcode = 'CF105';
    end if;
    case (select changefeed.base_type(a.atttypid) from pg_attribute a
          where a.attrelid = source.source and a.attname = source.ulid_column and a.attnum > 0)
        when 'bytea'::regtype then
            form := '$2';
            value := format('t.%I', source.ulid_column);
        when 'uuid'::regtype then
            form := 'pg_catalog.encode($2, ''hex'')::pg_catalog.uuid';
            value := format('pg_catalog.uuid_send(t.%I)', source.ulid_column);
        else
            raise exception 'changefeed: column "%" of %, the ULID of feed ''%'', is neither bytea nor uuid any more',
                source.ulid_column, source.source, changefeed.feed_name(of_feed) using errcode = 'CF105';
    end case;
    if after is null then
        execute format('select %s from %s t where changefeed.same_row(t.*, $1)
                        and t.%I operator(pg_catalog.=) $2 order by t.%I desc limit 1',
                       value, table_, source.shard_column, source.ulid_column)
        into last using wanted, of_shard;
    else
        for ulid, new in execute format(
            'select %s, (select row_to_json(changefeed_row.*)::text from (select %s) changefeed_row) from (
                 select t.* from %s t
                 where changefeed.same_row(t.*, $4) and t.%I operator(pg_catalog.=) $1
                   and t.%I operator(pg_catalog.>) %s
                 order by t.%I limit $3 + 1) t',
            value, changefeed.page_columns(source.source, 't'), table_, source.shard_column,
            source.ulid_column, form, source.ulid_column)
            using of_shard, after, "limit", wanted
        loop
            size := octet_length(new);
            if at > "limit" or at > 1 and total + size > bytes then
                more := true;
                exit;
            end if;
            kind := 'r';
            return next;
            total := total + size;
            last := ulid;
            at := at + 1;
        end loop;
    end if;
    ulid := last;
    kind := case when more then 'more' else 'end' end;
    new := changefeed.incarnation();
    return next;
end $$;

-- Reading by SQL -------------------------------------------------------------------------------------
--
-- Numbers, keys and images are read with our rights, by whoever was granted the feed, and rows by joins,
-- with the rights of whoever asks. A function with our rights could not tell who calls it; a view can: in it,
-- the tables are reached with the rights of its owner, and everything else is the caller's.

-- The feeds, and whether the caller may read them.
create view changefeed.feed_access as
select f.feed_id, f.name,
       pg_catalog.has_table_privilege('changefeed.numbered', 'select')
       or exists (select from changefeed.feed_reader r
                  where r.feed_id = f.feed_id and pg_catalog.pg_has_role(r.reader, 'usage')) as allowed
from changefeed.feed f;

-- How the stored key of a feed becomes a JSON object: the names that its columns have now, and how their values
-- are written in rows: n as numbers, b as truth values, t as times, and otherwise as texts.
create function changefeed.key_form(of_feed smallint, out names text[], out kinds text[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
    source changefeed.feed_source;
begin
    select f.* into source from changefeed.feed_source f where f.feed_id = of_feed and f.kind = 'captured';
    select array_agg(coalesce(a.attname::text, source.key_names[k.place]) order by k.place),
           array_agg(case when b.type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype,
                                          'float4'::regtype, 'float8'::regtype) then 'n'
                          when b.type = 'bool'::regtype then 'b'
                          when b.type in ('timestamp'::regtype, 'timestamptz'::regtype) then 't' end
                     order by k.place)
    into names, kinds
    from unnest(changefeed.key_numbers(source)) with ordinality k(number, place)
    left join pg_attribute a on a.attrelid = source.source and a.attnum = k.number and not a.attisdropped
    cross join lateral (select changefeed.base_type(a.atttypid) as type) b;
end $$;

-- A stored key as a JSON object. It never fails: what is not written as its kind stays a text.
create function changefeed.key_json(names text[], kinds text[], key jsonb) returns jsonb
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select jsonb_object_agg(names[k.place], case
        when kinds[k.place] = 'n' and k.value ~ '^-?[0-9]+([.][0-9]+)?(e[-+]?[0-9]{1,3})?$' then k.value::jsonb
        when kinds[k.place] = 'b' and k.value in ('t', 'f') then to_jsonb(k.value = 't')
        when kinds[k.place] = 't' and k.value ~ '^[0-9]+-[0-9]+-[0-9]+ [0-9:.]+([+]00)?$'
            then to_jsonb(regexp_replace(replace(k.value, ' ', 'T'), '[+]00$', '+00:00'))
        else to_jsonb(k.value) end)
    from jsonb_array_elements_text(key) with ordinality k(value, place)
    where jsonb_array_length(key) = cardinality(names)
$$;

-- The values of a key as they are kept: as change_row has them, and as rows in JSON do. People write values in other
-- ways than the server does. One that is not possible for its column stays as it is, and nothing has it; so does one of
-- somebody's own type, because reading it may run their functions, and one that its column would cut or round.
create function changefeed.kept_key(source oid, names text[], given text[], out texts text[], out shown text[])
language plpgsql stable set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as $$
declare
    one     record;
    written text;
    in_json text;
begin
    texts := given;
    shown := given;
    for one in
        select k.place, k.value, format_type(b.oid, -1) as type,
               format_type(b.oid, case when t.typtype = 'd' then t.typtypmod else a.atttypmod end) as exact
        from unnest(names, given) with ordinality k(name, value, place)
        join pg_attribute a on a.attrelid = source and a.attname = k.name and not a.attisdropped
        join pg_type t on t.oid = a.atttypid
        join pg_type b on b.oid = changefeed.base_type(a.atttypid) and b.typnamespace = 'pg_catalog'::regnamespace
    loop
        begin
            execute format(
                'select format(''%%s'', k.value), to_json(k.value) #>> ''{}''
                 from (select $1::%s as value) k where k.value = $1::%s', one.exact, one.type)
            into strict written, in_json using one.value;
            texts[one.place] := written;
            shown[one.place] := in_json;
        exception when others then
            null;
        end;
    end loop;
end $$;

-- Every change that has its number, of the feeds that the caller may read, as it is stored. In order, which
-- costs nothing: otherwise the planner does not know that a page comes in order, and reads all that come after it. And
-- the right is a value: a join would come before the numbers.
create view changefeed.stored_change with (security_barrier) as
select n.feed_id, n.shard, n.change_sequence_number, n.change_id,
       case coalesce(r.op, e.op) when 'I' then 'insert' when 'U' then 'update' when 'D' then 'delete'
                                 when 'B' then 'backfill' when 'T' then 'truncate' when 'M' then 'manual' end as op,
       r.key,
       coalesce(r.old, e.old) as old, coalesce(r.new, e.new) as new
from changefeed.numbered n
left join changefeed.change_row r on r.change_id = n.change_id and r.feed_id = n.feed_id
left join changefeed.event e on e.change_id = n.change_id and e.feed_id = n.feed_id
where (select a.allowed from changefeed.feed_access a where a.feed_id = n.feed_id)
order by n.feed_id, n.shard, n.change_sequence_number;

-- The same with the key as an object: for joins and reports. It checks no cursor: who
-- pages through it jumps over what was trimmed and, during a backfill, over what is still to come; read() does not.
create view changefeed.change_log with (security_barrier) as
select c.feed_id, c.shard, c.change_sequence_number, c.change_id, c.op,
       case when c.key is not null then changefeed.key_json(k.names, k.kinds, c.key) end as key, c.old, c.new
from changefeed.stored_change c
join (select f.feed_id, k.names, k.kinds
      from changefeed.feed f cross join lateral changefeed.key_form(f.feed_id) k) k on k.feed_id = c.feed_id;

-- The next changes of a shard, in order of their numbers, for readers by SQL. `after` is the number of the
-- last change that was read, and null for the oldest that is kept. Cursors are checked and backfills waited for,
-- as our own readers do; all of it, and what it is joined with, is one moment of the database. `incarnation` is
-- the life that the cursor belongs to, if the reader has kept it.
create function changefeed.read(
    feed_id integer, shard integer, after bigint default null, "limit" integer default 1000,
    incarnation text default null)
returns table (change_sequence_number bigint, change_id bigint, op text, key jsonb, old json, new json)
language plpgsql stable set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
    of_feed  constant smallint := read.feed_id;
    of_shard constant smallint := read.shard;
    starting constant bigint := coalesce(read.after, 0);
    form     record;
begin
    if read."limit" is null or read."limit" < 1 then
        raise exception 'changefeed: a page needs a limit of at least 1'
            using errcode = 'invalid_parameter_value';
    end if;
    if not coalesce((select a.allowed from changefeed.feed_access a where a.feed_id = of_feed), true) then
        raise exception 'changefeed: % may not read feed ''%''', quote_ident(current_user), changefeed.feed_name(of_feed)
            using errcode = 'insufficient_privilege',
                  hint = format('Its owner can allow it: select changefeed.grant_read(%L, %L)',
                                changefeed.feed_name(of_feed), current_user);
    end if;
    if read.incarnation <> changefeed.incarnation() then
        raise exception 'changefeed: this database was recovered from a backup: cursor % belongs to another life of it',
            read.after
            using errcode = 'CF107', hint = 'Compare the current state of the data with yours, then go on from the first '
                'or the last change, with changefeed.incarnation().';
    end if;
    perform changefeed.check_cursor(of_feed, of_shard, read.after);
    select k.names, k.kinds into form from changefeed.key_form(of_feed) k;
    return query
    select c.change_sequence_number, c.change_id, c.op,
           case when c.key is not null then changefeed.key_json(form.names, form.kinds, c.key) end, c.old, c.new
    from changefeed.stored_change c
    where c.feed_id = of_feed and c.shard = of_shard and c.change_sequence_number > starting
      and c.change_sequence_number <= (
          select case when e.backfilling and starting < e.start then e.start else 9223372036854775807 end
          from changefeed.shard_end e where e.feed_id = of_feed and e.shard = of_shard)
    order by c.change_sequence_number
    limit read."limit";
end $$;

-- The same, for a feed that is called by its name.
create function changefeed.read(
    feed text, shard integer, after bigint default null, "limit" integer default 1000,
    incarnation text default null)
returns table (change_sequence_number bigint, change_id bigint, op text, key jsonb, old json, new json)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    of_feed constant smallint := (select a.feed_id from changefeed.feed_access a where a.name = read.feed);
begin
    if of_feed is null then
        raise exception 'changefeed: there is no feed %', read.feed
            using errcode = 'CF103', hint = 'changefeed.feed lists what there is.';
    end if;
    return query select r.change_sequence_number, r.change_id, r.op, r.key, r.old, r.new
                 from changefeed.read(of_feed, read.shard, read.after, read."limit", read.incarnation) r;
end $$;

-- Lets a role read a feed by SQL: its numbers, keys and images, which no row-level security and no grant of the
-- table applies to. The owner of the schema calls it.
create function changefeed.grant_read(feed text, reader regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    of_feed constant smallint := (select f.feed_id from changefeed.feed f where f.name = feed);
begin
    if of_feed is null then
        raise exception 'changefeed: there is no feed %', feed
            using errcode = 'CF103', hint = 'changefeed.feed lists what there is.';
    end if;
    execute replace(
        'grant usage on schema changefeed to {reader};
         grant select on changefeed.feed, changefeed.shard, changefeed.shard_end, changefeed.feed_access,
             changefeed.stored_change, changefeed.change_log to {reader};
         grant select on changefeed.incarnation to {reader};
         grant execute on function changefeed.read(integer, integer, bigint, integer, text),
             changefeed.read(text, integer, bigint, integer, text), changefeed.incarnation,
             changefeed.feed_name, changefeed.check_cursor, changefeed.key_form, changefeed.key_json to {reader}',
        '{reader}', reader::text);
    insert into changefeed.feed_reader (feed_id, reader) values (of_feed, grant_read.reader) on conflict do nothing;
end $$;

-- Takes it back. A name that is wrong is not taken for a right that is gone.
create function changefeed.revoke_read(feed text, reader regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    of_feed constant smallint := (select f.feed_id from changefeed.feed f where f.name = feed);
begin
    if of_feed is null then
        raise exception 'changefeed: there is no feed %', feed
            using errcode = 'CF103', hint = 'changefeed.feed lists what there is.';
    end if;
    delete from changefeed.feed_reader r where r.feed_id = of_feed and r.reader = revoke_read.reader;
end $$;

-- The clock ------------------------------------------------------------------------------------------

-- The latest time that was seen on the server's clock.
create table changefeed.clock (
    singleton boolean primary key default true check (singleton),
    latest    timestamptz not null default clock_timestamp(),
    -- The last step back, while events of before it may still have to be brought back.
    step_to   timestamptz,
    step      interval,
    -- How far what is to come was looked at, where that is too much for one look.
    looked_to timestamptz
);
insert into changefeed.clock default values;

-- The time, for whatever is put off or held until later. It is written down if it is far ahead of what
-- was last seen: should that have been a step of the clock which is taken back before anybody looks,
-- the next look finds it all the same. Without waiting for anybody, who would write down the same.
create function changefeed.noted_time() returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    now_at timestamptz := clock_timestamp();
begin
    perform from changefeed.clock c where c.latest < now_at - interval '15 seconds';
    if found then
        update changefeed.clock c set latest = now_at
        where c.ctid = any (array(
            select c.ctid from changefeed.clock c where c.latest < now_at for update skip locked));
    end if;
    return now_at;
end $$;

-- Looks whether the clock was set back, and if so, brings back what lies ahead only because of that:
-- events and rows that are due, and leases of owners that may be dead, would wait for as long as the
-- step was. Returns how far back the clock went, in milliseconds, to whoever noticed. Any number may
-- call it at the same time, and again when it is unknown whether it was done.
--
-- A step forward that was taken back before a look leaves events that were captured at times that are
-- still to come. They are looked for among all that is to come, a part at each look.
create function changefeed.keep_time(out stepped bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Events that are brought back by one call, and events of a trigger that it looks at.
    batch  constant integer := 20000;
    looked constant integer := 2000;
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
    if known.looked_to is null or known.looked_to < now_at + interval '5 seconds' then
        known.looked_to := now_at + interval '5 seconds';
    end if;
    with ahead as materialized (
        select e.*
        from changefeed.event_trigger t
        cross join lateral (
            select e.ctid as place, e.trigger_id, e.due_at,
                   e.generation = 0 and e.created_at > now_at + interval '5 seconds' as astray
            from changefeed.event e
            where e.trigger_id = t.trigger_id and e.due_at >= known.looked_to
            order by e.due_at, e.change_id
            limit looked
        ) e
    ),
    brought as (
        update changefeed.event e set due_at = now_at
        where e.ctid = any (array(
            select e.ctid from changefeed.event e
            where e.ctid = any (array(select a.place from ahead a where a.astray))
              and e.generation = 0 and e.due_at > now_at
            for update skip locked))
    )
    -- Where the next look begins: behind what this one has reached of every trigger.
    select min(l.due_at) + interval '1 microsecond' into known.looked_to
    from (select max(a.due_at) as due_at from ahead a
          group by a.trigger_id having count(*) = looked) l;
    update changefeed.clock c set latest = now_at, step_to = known.step_to, step = known.step,
                                  looked_to = known.looked_to;
end $$;

-- Rights ---------------------------------------------------------------------------------------------

-- Nobody but the owner of the schema makes anything in it: whoever could, would decide what functions
-- of ours and their callers do. What workers need is granted by grant_worker(), which the owner calls,
-- for the watches that there are and for all that are made later. It grants no more than that: with
-- the tables of event triggers or tokens, for instance, a worker could do whatever the owner can.

-- Grants to a worker what was made for one table or function.
create function changefeed.grant_watch(ours text, worker regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute format('grant %s on changefeed.%I to %s',
                   case when ours ~ '^backlog_' then 'select'
                        when ours ~ '^changes_' then 'select, delete'
                        when ours = 'global_state' then 'select, insert, update'
                        else 'select, insert, update, delete' end, ours, worker);
end $$;

create function changefeed.grant_worker(worker regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    execute replace(
        'grant usage on schema changefeed to {worker};
         grant select on changefeed.schema_version, changefeed.watch, changefeed.watched_table,
             changefeed.watch_backlog to {worker};
         grant update (loading, loaded_to) on changefeed.watch to {worker};
         grant usage on sequence changefeed.change_version, changefeed.lease_generation to {worker};
         grant execute on function changefeed.watch_count, changefeed.table_signature,
             changefeed.readable, changefeed.page_columns, changefeed.safe_value,
             changefeed.base_type, changefeed.hold_table, changefeed.unreadable,
             changefeed.same_row, changefeed.noted_time, changefeed.keep_time to {worker};
         grant execute on procedure changefeed.await_commit to {worker}',
        '{worker}', worker::text);
    perform changefeed.grant_watch(c.relname, worker)
    from pg_class c
    where c.relnamespace = 'changefeed'::regnamespace
      and (c.relkind = 'r' and c.relname ~ '^(global_state|changes_[0-9]+|leases_[0-9a-f]{16}_[0-9]+)$'
           or c.relkind = 'v' and c.relname ~ '^backlog_[0-9a-f]{16}$');
end $$;

-- Gives what was made for a watch to the owner of the schema, if a superuser or a member of the owner
-- has made it, and a table or view also to all workers: those who may write to global_state.
create function changefeed.hand_over(ours text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    owner regrole := (select n.nspowner from pg_namespace n where n.nspname = 'changefeed');
begin
    if exists (select from pg_proc p where p.pronamespace = 'changefeed'::regnamespace
                 and p.proname = ours and p.proowner <> owner) then
        execute format('alter function changefeed.%I() owner to %s', ours, owner);
    end if;
    if exists (select from pg_class c where c.relnamespace = 'changefeed'::regnamespace
                 and c.relname = ours and c.relowner <> owner) then
        execute format('alter table changefeed.%I owner to %s', ours, owner);
    end if;
    perform changefeed.grant_watch(ours, w.grantee)
    from (select distinct a.grantee
          from pg_class c, aclexplode(c.relacl) a
          where c.oid = to_regclass('changefeed.global_state') and a.privilege_type = 'INSERT'
            and a.grantee <> c.relowner and a.grantee <> 0) w
    where exists (select from pg_class c where c.relnamespace = 'changefeed'::regnamespace
                    and c.relname = ours);
end $$;

revoke all on all functions in schema changefeed from public;
revoke all on all procedures in schema changefeed from public;
grant execute on function changefeed.refuse_change() to public;
