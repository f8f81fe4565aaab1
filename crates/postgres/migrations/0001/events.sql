-- changefeed: event triggers on PostgreSQL.
--
-- What users see: event_trigger, event_log, event_invocation_logs, and two settings that a writer
-- may make: changefeed.session_variables and changefeed.trace_context. The rest is how it works.
--
--   1. A database trigger of ours writes a row of `event` in the writer's own transaction.
--   2. A dispatcher claims events that are due (`due_at`), for the time of a lease, delivers them,
--      and writes down every attempt together with what follows from it.
--
-- One column, `due_at`, says everything about when: at capture it is now; while somebody holds the
-- event it is the end of the lease, so that an expired lease is simply due again; after a failure
-- it is the next attempt; and null means that nothing more will happen by itself.

create table changefeed.event_trigger (
    trigger_id     integer generated always as identity primary key,
    name           varchar(100) not null check (name ~ '^[A-Za-z]+[A-Za-z0-9_\-]*$'),
    -- The table; a regclass follows it when it is renamed, and is dumped as a name. The names are
    -- those it had last.
    source         regclass not null,
    schema_name    text not null,
    table_name     text not null,
    -- What a person wrote, as JSON.
    definition     jsonb not null,
    -- The places of the columns that the definition names, so that a renamed one is found.
    columns        jsonb not null default '{}',
    -- Where these places mean something: a dump that is restored numbers columns anew.
    columns_of     text,
    -- What the columns of the table and of its partitions were when the triggers were made.
    signatures     text[] not null default '{}',
    feed_id        smallint references changefeed.feed,
    paused_because text,
    -- What of the definition statements need: how long an event waits for its first attempt, and the time from one
    -- request to the next with how many may follow each other at once.
    wait_ms        bigint not null default 0,
    pace_us        bigint,
    burst          integer not null default 1,
    -- When the next request was due if all had kept the pace. It is moved with what is taken, so that an instance
    -- that stops holds no more of the rate than it has taken.
    paced_at       timestamptz,
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp(),
    -- The row of a dropped trigger stays: its events are still in the log.
    dropped_at     timestamptz
);
create unique index ix_event_trigger_name on changefeed.event_trigger (name)
    where dropped_at is null;

create table changefeed.event (
    change_id         bigint primary key default nextval('changefeed.change_id'),
    created_at        timestamptz not null default clock_timestamp(),
    due_at            timestamptz default clock_timestamp(),
    trigger_id        integer not null,
    -- How often it has changed hands; whatever is written about it must match.
    generation        integer not null default 0,
    -- Attempts, and how many of them a crash has cut off.
    tries             smallint not null default 0,
    cut_off           smallint not null default 0,
    -- p pending, d delivered, e given up, a archived because its trigger was dropped, c collapsed into a
    -- later event of its key
    state             "char" not null default 'p',
    -- That event.
    superseded_by     bigint,
    -- I insert, U update, D delete, M by hand
    op                "char" not null,
    -- The feed that it also entered. Only there it is read: whoever may publish can enter any change_id
    -- into any feed.
    feed_id           smallint,
    -- Events of one key are delivered one after the other; a hash, because equal is all that
    -- matters, and two keys that share one merely wait for each other.
    order_key         bigint,
    -- What its id has besides the change_id, which a database that was restored from a backup gives
    -- again to another event.
    bits              bigint not null default uuid_hash_extended(gen_random_uuid(), 0),
    locked_by         text,
    session_variables text,
    trace_context     text,
    -- json, not jsonb: it keeps what the database wrote, and costs the writer no parsing.
    old               json,
    new               json
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_insert_scale_factor = 0.2);
create index ix_event_due on changefeed.event (trigger_id, due_at, change_id)
    where due_at is not null;
create index ix_event_order on changefeed.event (trigger_id, order_key, change_id)
    where due_at is not null and order_key is not null;
create index ix_event_dead on changefeed.event (trigger_id, change_id)
    where state = 'e';
-- What is finished, by age, for cleaning up. Delivery pays for this one, not the writer of the application.
create index ix_event_finished on changefeed.event (trigger_id, created_at) where state <> 'p';

create table changefeed.event_attempt (
    change_id   bigint not null,
    -- The event's, when the attempt was made: one attempt, one row, however often it is told.
    generation  integer not null,
    trigger_id  integer not null,
    attempt     integer not null,
    outcome     text not null check (outcome in ('success', 'failure', 'unknown')),
    -- The sender had lost the event to somebody else: the attempt decided nothing.
    late        boolean not null default false,
    status      smallint,
    -- JSON; as text, because it was written by us and need not be parsed again.
    request     text,
    response    text,
    error       text,
    duration_ms bigint not null default 0,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (change_id, generation)
);

-- Events by hand that were asked for, by the key of the request: one that is repeated because its
-- answer was lost makes no second event.
create table changefeed.event_request (
    key        uuid primary key,
    change_id  bigint not null,
    bits       bigint not null default uuid_hash_extended(gen_random_uuid(), 0),
    created_at timestamptz not null default clock_timestamp()
);
create index ix_event_request_created on changefeed.event_request (created_at);

-- The id of an event: a UUID of version 8 made of its change_id and 60 of its random bits.
create function changefeed.event_id(change_id bigint, bits bigint) returns uuid
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select (lpad(to_hex(change_id >> 12), 12, '0') || '8' || lpad(to_hex(change_id & 4095), 3, '0')
            || '8' || lpad(to_hex(bits & 1152921504606846975), 15, '0'))::uuid
$$;

-- When an event that waits so long is due for the first time.
create function changefeed.first_due(wait_ms bigint) returns timestamptz
language sql volatile parallel safe set search_path = pg_catalog, pg_temp as $$
    select clock_timestamp() + wait_ms * interval '1 millisecond'
$$;

-- A setting of a writer as JSON: as it is if it is JSON, and otherwise as a JSON string, because a
-- writer may set it to anything.
create function changefeed.setting_json(setting text) returns json
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return setting::json;
exception when others then
    return to_json(setting);
end $$;

-- A trace as an object: a writer may have set that, or only a traceparent.
create function changefeed.trace_json(setting text) returns json
language sql stable parallel safe set search_path = pg_catalog, pg_temp as $$
    select case when json_typeof(s.json) = 'object' then s.json
                when s.json is not null
                then json_build_object('traceparent', btrim(setting, ' "')) end
    from (select changefeed.setting_json(setting) as json) s
$$;

create view changefeed.event_log as
select changefeed.event_id(e.change_id, e.bits) as id,
       e.change_id,
       t.name::text as trigger_name,
       t.schema_name,
       t.table_name,
       case e.op when 'I' then 'INSERT' when 'U' then 'UPDATE' when 'D' then 'DELETE'
                 else 'MANUAL' end as op,
       e.old, e.new,
       changefeed.setting_json(e.session_variables) as session_variables,
       changefeed.trace_json(e.trace_context) as trace_context,
       e.created_at,
       e.state = 'd' as delivered,
       e.state = 'e' as error,
       e.tries::integer as tries,
       e.locked_by,
       case when e.locked_by is not null then e.due_at end as locked_until,
       case when e.locked_by is null then e.due_at end as next_retry_at,
       e.state = 'a' as archived,
       e.superseded_by
from changefeed.event e
join changefeed.event_trigger t on t.trigger_id = e.trigger_id;

create view changefeed.event_invocation_logs as
select changefeed.event_id(a.change_id, e.bits) || '-' || a.generation as id,
       changefeed.event_id(a.change_id, e.bits) as event_id, a.change_id,
       t.name::text as trigger_name, a.status::integer as status, a.request::json as request,
       a.response::json as response, a.created_at, a.attempt, a.outcome, a.late, a.error, a.duration_ms
from changefeed.event_attempt a
join changefeed.event e on e.change_id = a.change_id
join changefeed.event_trigger t on t.trigger_id = a.trigger_id;

-- How far the existing rows of a table have become events.
create table changefeed.event_backfill (
    trigger_id  integer primary key references changefeed.event_trigger,
    last_key    jsonb,
    done        bigint not null default 0,
    total       bigint not null,
    finished_at timestamptz
);

-- Who may send events by hand in SQL: see invoke().
create table changefeed.event_invoker (
    trigger_id integer not null references changefeed.event_trigger,
    invoker    regrole not null,
    primary key (trigger_id, invoker)
);

-- Changes that no event was made for, and that nobody could have been told about otherwise.
create table changefeed.event_gap (
    trigger_id  integer not null,
    happened_at timestamptz not null default clock_timestamp(),
    what        text not null,
    by_user     text not null default session_user
);

-- Capture ---------------------------------------------------------------------------------------
--
-- The functions of our triggers are made for the columns of their table, as fast as can be, and
-- check with every call that these columns are still what they were. If they are not, the same
-- expressions are made anew for the table as it is now: slower, but the application's write goes
-- on, and what it wrote is captured. A dispatcher then remakes the function.
--
-- The check is also a matter of security. Our functions run with our rights, so that writers need
-- none; and to_json calls a cast to json if a type has one, which may be anybody's function. So
-- only types of the server itself are given to it, and everything else as text: `format` calls
-- nothing but the type's own output function. Neither the check nor what follows from it depends on
-- the writer's snapshot: see "Tables as they are now" in capture.sql. For the same reason the
-- functions carry their definition: a snapshot may be older than the trigger.

-- What the columns of a table are.
create function changefeed.table_signature(source oid) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    -- Quoted: a column may be called anything.
    select coalesce(string_agg(quote_ident(a.attname) || ':' || a.atttypid, ','), '')
    from (select attname, atttypid from pg_attribute
          where attrelid = source and attnum > 0 and not attisdropped
          order by attnum offset 0) a
$$;

-- The value of a column as an expression that is safe to give to to_json.
create function changefeed.safe_value(reference text, type oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    base pg_type;
begin
    select t.* into base from pg_type t where t.oid = changefeed.base_type(type);
    if base.typnamespace = 'pg_catalog'::regnamespace then
        return reference;
    elsif coalesce(base.typcategory = 'A', format_type(type, null) like '%[]') then
        -- An array of somebody's type: an array of texts.
        return format('case when num_nulls(%1$s) = 0 then format(''%%s'', %1$s)::text[] end',
                      reference);
    end if;
    return format('case when num_nulls(%1$s) = 0 then format(''%%s'', %1$s) end', reference);
end $$;

-- The columns of a row as such values.
create function changefeed.safe_columns(source oid, alias text, wanted text[]) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select coalesce(string_agg(
        -- A type of the server's own is safe as it is; one that cannot be seen is somebody's own.
        case when t.typnamespace = 'pg_catalog'::regnamespace then format('%s.%I', alias, c.name)
             else changefeed.safe_value(format('%s.%I', alias, c.name), c.type) end
        || format(' as %I', c.name), ', ' order by c.place), '')
    from changefeed.columns_now(source) c
    left join pg_type t on t.oid = c.type
    where wanted is null or c.name = any (wanted)
$$;

-- A row as JSON.
create function changefeed.row_json(source oid, alias text, wanted text[]) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select coalesce(
        format('(select row_to_json(changefeed_row.*) from (select %s) changefeed_row)',
               nullif(changefeed.safe_columns(source, alias, wanted), '')),
        '''{}''::json')
$$;

-- A row of a table that was altered since its trigger was made, as JSON: slower than the trigger itself, but it
-- never fails. A row whose values cannot be told apart is one text.
create function changefeed.image_now(source oid, changed anyelement) returns json
language plpgsql stable set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set bytea_output = 'hex' set intervalstyle = 'postgres'
set extra_float_digits = 1 set lc_monetary = 'C' set standard_conforming_strings = on
set transform_null_equals = off as $$
declare
    image json;
begin
    execute 'select ' || changefeed.row_json(source, '($1)', null) into image using changed;
    return image;
exception when others then
    raise warning 'changefeed: a row of % is captured as a text: %', source::regclass, sqlerrm;
    return json_build_object('changefeed_record', format('%s', changed));
end $$;

-- The same for a feed that leaves something out: null if the row is not in it. A condition that cannot be asked
-- any more keeps nothing out; a column that has another name now is not shown.
create function changefeed.image_now(source oid, changed anyelement, condition text, columns text[]) returns json
language plpgsql stable set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set bytea_output = 'hex' set intervalstyle = 'postgres'
set extra_float_digits = 1 set lc_monetary = 'C' set standard_conforming_strings = on
set transform_null_equals = off as $$
declare
    image json := changefeed.image_now(source, changed);
    here  boolean;
begin
    if condition is not null then
        begin
            execute format('select (%s) from (select %s) changefeed_row', condition, changefeed.safe_columns(source, '($1)', null))
            into here using changed;
            if here is not true then
                return null;
            end if;
        exception when others then
            raise warning 'changefeed: a row of % is in a feed whose condition failed: %', source::regclass, sqlerrm;
        end;
    end if;
    if columns is null then
        return image;
    end if;
    return (select coalesce(json_object_agg(c.name, image -> c.name), '{}'::json)
            from unnest(columns) c(name) where image -> c.name is not null);
end $$;

-- Whether the columns of a row are what they are now, as a condition for later. A column that was
-- added is known by its number; asked about everybody, because PostgreSQL 13 does not tell one who
-- may use the whole table. All tables of a partition tree have the columns of its root.
create function changefeed.known_columns(source oid, alias text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    root   oid := coalesce(pg_partition_root(source), source);
    parted boolean := (select c.relkind = 'p' from pg_class c where c.oid = source);
    checks text := (
        select string_agg(format('pg_typeof(%s.%I)::oid = %s::oid', alias, c.name, c.type),
                          ' and ' order by c.place)
        from changefeed.columns_now(source) c);
begin
    return concat_ws(' and ', checks,
        case when parted then format('pg_partition_root(tg_relid) = %s::oid', root) end,
        format('has_column_privilege(''public'', %s, %s::smallint, ''references'') is null',
               case when parted then root || '::oid' else 'tg_relid' end,
               (select c.relnatts + 1 from pg_class c
                where c.oid = case when parted then root else source end)));
end $$;

-- What a capture function has to know of its definition.
create function changefeed.event_plan(of_trigger integer) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'trigger', t.trigger_id, 'columns', t.columns,
        -- Not the whole of it: everybody can read functions, and it names where events go.
        'capture', jsonb_build_object(
            'update', t.definition -> 'update', 'payload', t.definition -> 'payload',
            'in_order', t.definition -> 'in_order', 'shard_by', t.definition -> 'shard_by'),
        'columns_of', t.columns_of, 'feed', t.feed_id, 'wait_ms', t.wait_ms,
        'shards', (select count(*) from changefeed.shard_definition d
                   where d.feed_id = t.feed_id and d.shard >= 0))
    from changefeed.event_trigger t where t.trigger_id = of_trigger
$$;

-- The names that columns of a table have now which a definition names; null if it names none, and
-- without those that were dropped.
create function changefeed.current_columns(plan jsonb, relation oid, names jsonb) returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if jsonb_typeof(names) is distinct from 'array' then
        return null;
    end if;
    return (
        select coalesce(array_agg(c.name), '{}')
        from jsonb_array_elements_text(names) n(name)
        join changefeed.columns_now(relation) c on c.name = changefeed.column_now(
            plan ->> 'columns_of', (plan -> 'columns' ->> n.name)::smallint, n.name));
end $$;

-- The expressions that a capture function is made of, for a table as it is now.
create type changefeed.event_expressions as (
    before    text,
    after     text,
    -- Whether a column that is listened to has changed.
    differs   text,
    order_key text,
    shard     text
);

create function changefeed.event_capture(
    plan jsonb, relation oid, old_alias text, new_alias text)
returns changefeed.event_expressions
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    capture  jsonb := plan -> 'capture';
    payload  text[] := changefeed.current_columns(plan, relation, capture -> 'payload');
    listened text[];
    key      text[];
    shard_by text;
    e        changefeed.event_expressions;
begin
    e.before := changefeed.row_json(relation, old_alias, payload);
    e.after := changefeed.row_json(relation, new_alias, payload);

    -- If all of them are gone, every change counts.
    listened := nullif(changefeed.current_columns(plan, relation, capture -> 'update'), '{}');
    -- The image of a row, not its equality: json has none, and null is as good as any value.
    if listened is null then
        e.differs := format('%s *<> %s', old_alias, new_alias);
    else
        -- As records: rows side by side are compared column by column, by operators of theirs.
        select format('row(%s)::record *<> row(%s)::record',
                      string_agg(format('%s.%I', old_alias, c), ', '),
                      string_agg(format('%s.%I', new_alias, c), ', '))
        into e.differs from unnest(listened) c;
    end if;

    if capture -> 'in_order' = 'true' then
        key := changefeed.key_now(relation);
    elsif jsonb_typeof(capture -> 'in_order') = 'string' then
        key := changefeed.current_columns(plan, relation, jsonb_build_array(capture -> 'in_order'));
    end if;
    -- The new row decides, and in a delete the old one.
    if cardinality(key) > 0 then
        select format('hashtextextended(jsonb_build_array(%s)::text, 0)', string_agg(format(
                   'case when num_nulls(%1$s.%2$I) = 0 then format(''%%s'', %1$s.%2$I) end',
                   new_alias, c), ', '))
        into e.order_key from unnest(key) c;
    elsif capture -> 'in_order' <> 'false' then
        e.order_key := '0::bigint';
    else
        e.order_key := 'null::bigint';
    end if;

    if plan ->> 'feed' is not null then
        shard_by := (changefeed.current_columns(plan, relation,
            jsonb_build_array(capture -> 'shard_by')))[1];
        e.shard := changefeed.shard_expression(new_alias, shard_by,
            (select c.type from changefeed.columns_now(relation) c where c.name = shard_by),
            (plan ->> 'shards')::integer);
    end if;
    return e;
end $$;

-- The statement that captures what a whole statement of the writer's has inserted or deleted;
-- without a relation, each row as one text.
create function changefeed.event_statement(plan jsonb, relation oid, op "char") returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    e    changefeed.event_expressions;
    into_event constant text := format(
        'insert into changefeed.event (change_id, trigger_id, feed_id, op, %s, session_variables, '
        'trace_context, due_at, order_key) ', case op when 'I' then 'new' else 'old' end);
    settings constant text := format(
        -- What writers for Hasura set is understood as well.
        'coalesce(nullif(current_setting(''changefeed.session_variables'', true), ''''), '
        'nullif(current_setting(''hasura.user'', true), '''')), '
        'coalesce(nullif(current_setting(''changefeed.trace_context'', true), ''''), '
        'nullif(current_setting(''hasura.tracecontext'', true), '''')), %s',
        case when (plan ->> 'wait_ms')::bigint > 0
             then format('changefeed.first_due(%s)', plan ->> 'wait_ms') else 'clock_timestamp()' end);
begin
    if relation is not null then
        e := changefeed.event_capture(plan, relation, 'c', 'c');
    else
        e.after := 'json_build_object(''changefeed_record'', format(''%s'', c.*))';
        e.order_key := '0::bigint';
        e.shard := '0::smallint';
    end if;
    if plan ->> 'feed' is null then
        return into_event || format(
            'select nextval(''changefeed.change_id''), %s, null, %L, %s, %s, %s from changed c',
            plan ->> 'trigger', op, e.after, settings, e.order_key);
    end if;
    return format(
        'with c as materialized (select nextval(''changefeed.change_id'') as change_id, '
        '%s as image, %s as order_key, %s as shard from changed c) '
        '%s select c.change_id, %s, %s, %L, c.image, %s, c.order_key from c '
        'where changefeed.enter_change(%s::smallint, c.shard, c.change_id)',
        e.after, e.order_key, e.shard, into_event, plan ->> 'trigger', plan ->> 'feed', op, settings,
        plan ->> 'feed');
end $$;

-- What a capture function executes for one row of a table whose columns it does not know: $1 is
-- the old row and $2 the new one.
create function changefeed.event_row(plan jsonb, relation oid, op text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    e changefeed.event_expressions := changefeed.event_capture(plan, relation, '($1)',
        case op when 'DELETE' then '($1)' else '($2)' end);
begin
    return format('select %s, %s, %s, %s, %s',
        case op when 'INSERT' then 'null::json' else e.before end,
        case op when 'DELETE' then 'null::json' else e.after end,
        case op when 'UPDATE' then e.differs else 'true' end,
        e.order_key, coalesce(e.shard, 'null::smallint'));
end $$;

-- The order of nested writes ------------------------------------------------------------------------
--
-- The server fires AFTER triggers when a statement is over. If a trigger of the application's writes
-- to the same table while a statement of many rows is at work, what it changes is captured first, and
-- the change that it followed comes later. So what is captured inside of a trigger is noted, by the
-- version of the row that it replaced; and whoever captures the change that made this version takes
-- the earlier number, and hands its own on. Both numbers are of this transaction, so that nobody has
-- seen them. The feeds of tables do the same; there a row that moves is two changes of one version.

-- Nobody but the transaction that wrote them looks at these rows.
create unlogged table changefeed.event_nested (
    xid        xid8 not null,
    -- Below zero: a feed, see publish_row().
    trigger_id integer not null,
    relation   oid not null,
    old_row    tid not null,
    new_row    tid,
    change_id  bigint not null,
    shard      smallint
);
create index ix_event_nested on changefeed.event_nested (xid, old_row);

-- The number of an event or change that is about to be written. For capture functions.
create function changefeed.event_place(
    of_trigger integer, source oid, old_version tid, old_writer xid, new_version tid,
    to_shard smallint)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    writer   constant xid8 := pg_current_xact_id();
    id       bigint := nextval('changefeed.change_id');
    next     bigint[];
    later    bigint[] := '{}';
    version  tid := new_version;
begin
    if current_setting('changefeed.nested', true) = writer::text then
        loop
            select array_agg(n.change_id order by n.change_id), (array_agg(n.new_row))[1] into next, version
            from changefeed.event_nested n
            where n.xid = writer and n.old_row = version and n.trigger_id = of_trigger
              and n.relation = source and n.shard is not distinct from to_shard;
            exit when next is null;
            later := later || next;
        end loop;
        for i in reverse cardinality(later) .. 1 loop
            update changefeed.event e set change_id = id where e.change_id = later[i] and of_trigger >= 0;
            update changefeed.change_row r set change_id = id where r.change_id = later[i] and of_trigger < 0;
            update changefeed.event_nested n set change_id = id
            where n.xid = writer and n.change_id = later[i] and n.trigger_id = of_trigger;
            id := later[i];
        end loop;
    end if;
    -- A version that is older than this transaction was captured long ago.
    if pg_trigger_depth() > 1 and old_version is not null
       and age(old_writer) <= age(writer::xid) then
        insert into changefeed.event_nested
            (xid, trigger_id, relation, old_row, new_row, change_id, shard)
        values (writer, of_trigger, source, old_version, new_version, id, to_shard);
        perform set_config('changefeed.nested', writer::text, true);
    end if;
    return id;
end $$;

-- Feeds that event triggers write to --------------------------------------------------------------

alter table changefeed.feed_source
    drop constraint feed_source_kind_check,
    add constraint feed_source_kind_check
        check (kind in ('captured', 'joined', 'ulid', 'events')),
    alter column source drop not null;

-- A trigger whose feed or shard is gone would fail the application's writes.
create function changefeed.event_feed_guard() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    writer text := (select t.name from changefeed.event_trigger t
                    where t.feed_id = old.feed_id and t.dropped_at is null limit 1);
begin
    if writer is not null then
        raise exception 'changefeed: event trigger % writes to feed %', writer, old.feed_id
            using errcode = 'object_in_use',
                  hint = 'Drop the event trigger first, or replace it by one without a feed.';
    end if;
    update changefeed.event_trigger t set feed_id = null where t.feed_id = old.feed_id;
    return old;
end $$;

-- Its name sorts before feed_delete, which takes the shards along.
create trigger event_feed_guard before delete on changefeed.feed
for each row execute function changefeed.event_feed_guard();
create trigger event_feed_guard before delete on changefeed.shard_definition
for each row execute function changefeed.event_feed_guard();

-- A database trigger whose definition is gone would not know what to capture.
create function changefeed.event_trigger_guard() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'changefeed: event trigger % must be dropped, not deleted', old.name
        using errcode = 'object_in_use', hint = 'Use `changefeed trigger drop`.';
end $$;

create trigger event_trigger_guard before delete on changefeed.event_trigger
for each row when (old.dropped_at is null) execute function changefeed.event_trigger_guard();

-- Claiming --------------------------------------------------------------------------------------

-- How many events of a trigger may be taken; 0 if another instance is at it in this very moment.
-- Whoever gets more holds the trigger's row until its statement is over. What others have taken is
-- counted by a statement of its own, which sees what was committed before the lock was had.
create function changefeed.claim_room(of_trigger integer, room integer, overall integer)
returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    held   bigint;
    paced  record;
begin
    select t.pace_us, t.burst, t.paced_at into paced from changefeed.event_trigger t
    where t.trigger_id = of_trigger and t.paused_because is null and t.dropped_at is null
    for no key update skip locked;
    if not found then
        return 0;
    end if;
    if paced.pace_us is not null then
        -- Requests that were not made are kept, up to a burst.
        room := least(room, paced.burst, floor(extract(epoch from
            clock_timestamp() - coalesce(paced.paced_at, clock_timestamp() - interval '2 days'))
            * 1000000 / paced.pace_us));
    end if;
    if overall is not null then
        select count(*) into held from changefeed.event e
        where e.trigger_id = of_trigger and e.due_at > (select clock_timestamp())
          and e.locked_by is not null;
        room := least(room, overall - held);
    end if;
    return greatest(0, room);
end $$;

-- Moves the pace of a trigger on by what was taken. Called within the statement that holds its row.
create function changefeed.paced(pace_us bigint, burst integer, paced_at timestamptz, taken bigint)
returns timestamptz
language sql volatile set search_path = pg_catalog, pg_temp as $$
    select greatest(coalesce(paced_at, '-infinity'),
                    clock_timestamp() - burst * pace_us * interval '1 microsecond')
           + taken * pace_us * interval '1 microsecond'
$$;

-- Events by hand, in SQL -------------------------------------------------------------------------

-- Sends an event by hand in the caller's own transaction: it is delivered if that is committed. The trigger must
-- have been created with --manual. Whoever owns the schema may call it, and roles that were allowed to:
-- see grant_invoke().
create function changefeed.invoke(trigger_name text, payload json default '{}') returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- The function runs with the rights of its owner; whoever calls it is the role that was set, or that logged in.
    caller   constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    found_it record;
    id       bigint;
    random   constant bigint := uuid_hash_extended(gen_random_uuid(), 0);
begin
    select t.trigger_id, t.feed_id, t.wait_ms, t.definition into found_it
    from changefeed.event_trigger t
    where t.name = invoke.trigger_name and t.dropped_at is null
      and (pg_has_role(caller, (select c.relowner from pg_class c where c.oid = 'changefeed.event'::regclass), 'member')
           or exists (select from changefeed.event_invoker i
                      where i.trigger_id = t.trigger_id and pg_has_role(caller, i.invoker, 'member')));
    if not found then
        raise exception 'changefeed: there is no event trigger %, or % may not send events of it by hand',
            trigger_name, quote_ident(caller)
            using errcode = 'insufficient_privilege',
                  hint = format('Its owner can allow it: select changefeed.grant_invoke(%L, %L)', trigger_name, caller);
    end if;
    if found_it.definition -> 'manual' is distinct from 'true' then
        raise exception 'changefeed: event trigger % takes no events by hand', trigger_name
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Create it with --manual, or change it with --replace --manual.';
    end if;
    id := nextval('changefeed.change_id');
    insert into changefeed.event
        (change_id, trigger_id, feed_id, op, new, session_variables, trace_context, due_at, order_key, bits)
    values (id, found_it.trigger_id, found_it.feed_id, 'M', coalesce(payload, '{}'),
            coalesce(nullif(current_setting('changefeed.session_variables', true), ''),
                     nullif(current_setting('hasura.user', true), '')),
            coalesce(nullif(current_setting('changefeed.trace_context', true), ''),
                     nullif(current_setting('hasura.tracecontext', true), '')),
            changefeed.first_due(found_it.wait_ms),
            case when found_it.definition -> 'in_order' <> 'false' then id end, random);
    if found_it.feed_id is not null then
        perform changefeed.enter_change(found_it.feed_id, 0::smallint, id);
    end if;
    return changefeed.event_id(id, random);
end $$;

-- Lets a role send events of a trigger by hand. The owner of the schema calls it.
create function changefeed.grant_invoke(trigger_name text, invoker regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    id constant integer := (select t.trigger_id from changefeed.event_trigger t
                            where t.name = grant_invoke.trigger_name and t.dropped_at is null);
begin
    if id is null then
        raise exception 'changefeed: there is no event trigger %', trigger_name
            using errcode = 'undefined_object', hint = 'changefeed.event_trigger lists what there is.';
    end if;
    execute format('grant usage on schema changefeed to %1$s; '
                   'grant execute on function changefeed.invoke to %1$s', invoker);
    insert into changefeed.event_invoker (trigger_id, invoker)
    values (id, grant_invoke.invoker) on conflict do nothing;
end $$;

-- Takes it back.
create function changefeed.revoke_invoke(trigger_name text, invoker regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    delete from changefeed.event_invoker i using changefeed.event_trigger t
    where t.trigger_id = i.trigger_id and t.name = revoke_invoke.trigger_name and t.dropped_at is null
      and i.invoker = revoke_invoke.invoker;
    if not found then
        raise exception 'changefeed: % was not allowed to send events of %', revoke_invoke.invoker, trigger_name
            using errcode = 'undefined_object';
    end if;
end $$;

revoke all on all functions in schema changefeed from public;
-- Whoever may read the views needs these; they tell nobody anything.
grant execute on function changefeed.event_id, changefeed.setting_json, changefeed.trace_json
    to public;
