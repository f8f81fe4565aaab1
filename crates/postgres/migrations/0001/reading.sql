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
    -- The form of that query, for keys as texts: one may not fit its column any more.
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
        spare := query;
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
        exit when at > cardinality(numbers);
        query := format(spare, cardinality(source.key_names), changefeed.key_object(source, 'r.key', true));
        spare := null;
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
