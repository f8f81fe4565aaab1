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

-- A row as it was, as JSON in a form that does not depend on the writer's settings; null where that fails. By the
-- columns that the table has now, and slower than what knows them beforehand: only for tables of which somebody asks.
create function changefeed.row_before(source oid, was anyelement) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as $$
declare
    image text;
begin
    execute 'select ' || changefeed.row_json(source, '($1)', null) || '::text' into image using was;
    return image;
exception when others then
    return null;
end $$;

-- Rows as they were before changes that are one, oldest first. Of very many only the first is kept, and that there
-- were more.
create function changefeed.few_images(images text[]) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
    select case when cardinality(images) > 16 then array[images[1], 'true'] else images end
$$;

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
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
    return exists (
        select from pg_type t left join pg_type e on e.oid = t.typelem
        where t.oid = changefeed.base_type(runs_code.type) and t.typnamespace <> 'pg_catalog'::regnamespace
          and (t.typtype not in ('b', 'e') or t.typcategory = 'A' and e.typtype not in ('b', 'e')));
end $$;

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
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
    return (select format('(select row_to_json(k.*)::text from (select %s) k)', string_agg(
        format(case when k.type is null or texts then '%s ->> %s as %I' else '(%s ->> %s)::%4$s as %3$I' end,
               key, k.place - 1, coalesce(k.name, source.key_names[k.place]), k.type), ', ' order by k.place))
    from changefeed.key_columns(source.source, changefeed.key_numbers(source)) k);
end $$;

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
