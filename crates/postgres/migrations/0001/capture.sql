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
-- application have written inside of the statement, see event_place(). The row and its entry in the inbox are one
-- statement, because starting a statement costs a writer about as much as inserting a row. For the same reason this
-- is called in an expression and not by PERFORM; hence the result, which is always true.
create function changefeed.publish_row(
    feed_id smallint, shard smallint, op "char", key jsonb, old json default null, new json default null,
    source oid default null, old_version tid default null, old_writer xid default null,
    new_version tid default null)
returns boolean
language plpgsql as $$
declare
    writer  pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    segment pg_catalog.int4 := ((writer::pg_catalog.text::pg_catalog.int8)
                                operator(pg_catalog.>>) 13) operator(pg_catalog.&) 3;
    id      pg_catalog.int8;
    -- Whichever number this change has got, the one that was drawn for it is the new one.
    drawn   pg_catalog.int8;
begin
    if pg_catalog.pg_trigger_depth() operator(pg_catalog.>) 1
       or pg_catalog.current_setting('changefeed.nested', true) operator(pg_catalog.<>) '' then
        id := changefeed.event_place(
            (-100000) operator(pg_catalog.-) feed_id, source, old_version, old_writer, new_version, shard);
        drawn := pg_catalog.currval('changefeed.change_id');
    else
        id := pg_catalog.nextval('changefeed.change_id');
        drawn := id;
    end if;
    if segment operator(pg_catalog.=) 0 then
        with told as (
            insert into changefeed.change_row (change_id, feed_id, op, key, old, new)
            values (id, publish_row.feed_id, publish_row.op, publish_row.key, publish_row.old, publish_row.new))
        insert into changefeed.inbox_0 (feed_id, shard, change_id, xid)
        values (publish_row.feed_id, publish_row.shard, drawn, writer);
    elsif segment operator(pg_catalog.=) 1 then
        with told as (
            insert into changefeed.change_row (change_id, feed_id, op, key, old, new)
            values (id, publish_row.feed_id, publish_row.op, publish_row.key, publish_row.old, publish_row.new))
        insert into changefeed.inbox_1 (feed_id, shard, change_id, xid)
        values (publish_row.feed_id, publish_row.shard, drawn, writer);
    elsif segment operator(pg_catalog.=) 2 then
        with told as (
            insert into changefeed.change_row (change_id, feed_id, op, key, old, new)
            values (id, publish_row.feed_id, publish_row.op, publish_row.key, publish_row.old, publish_row.new))
        insert into changefeed.inbox_2 (feed_id, shard, change_id, xid)
        values (publish_row.feed_id, publish_row.shard, drawn, writer);
    else
        with told as (
            insert into changefeed.change_row (change_id, feed_id, op, key, old, new)
            values (id, publish_row.feed_id, publish_row.op, publish_row.key, publish_row.old, publish_row.new))
        insert into changefeed.inbox_3 (feed_id, shard, change_id, xid)
        values (publish_row.feed_id, publish_row.shard, drawn, writer);
    end if;
    return true;
end $$;

-- Sets for the transaction what shapes values, and returns what it was before; or puts that back. A capture function
-- itself sets only what shows in the types that it knows, because each setting costs a writer more than a column. For
-- a table that was altered it goes by all of them. An error in between undoes the change as well.
create function changefeed.shape_values(before text[]) returns text[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    names constant text[] := array['timezone', 'datestyle', 'bytea_output', 'intervalstyle', 'extra_float_digits',
        'lc_monetary', 'xmlbinary', 'array_nulls', 'standard_conforming_strings', 'transform_null_equals'];
    ours  constant text[] := array['UTC', 'ISO, YMD', 'hex', 'postgres', '1', 'C', 'base64', 'on', 'on', 'off'];
    were  text[] := array(select current_setting(n.name)
                          from unnest(names) with ordinality n(name, place) order by n.place);
begin
    perform set_config(n.name, n.value, true) from unnest(names, coalesce(before, ours)) n(name, value);
    return were;
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
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (select s.system_identifier from pg_control_system() s) || '/' || source;
end $$;

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
