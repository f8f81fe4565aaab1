-- A `public` schema as an attacker would leave it: operators and functions that fit better than the server's own
-- wherever a value is a varchar, a name, a number of another kind, an array, or a literal that stands for a
-- relation. The databases of the tests are copies of this one.
--
-- Each trap does what the server's own operator or function does, so that nothing else changes. The planner puts
-- its body in the place of the call and, because changefeed_trap() claims to be immutable, calls that while it
-- plans. So a statement of ours that would use a trap is found even if it meets no row.

-- Tells the server's log if it was one of our sessions or functions that was about to use a trap.
create function public.changefeed_trap(what text) returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    stack text;
begin
    get diagnostics stack = pg_context;
    if current_setting('application_name') ~ '^changefeed' or stack ~ 'function changefeed\.' then
        raise log 'changefeed-trap-sprung: in %: % by % in % during %', current_database(), what, session_user,
            regexp_replace(stack, '\s+', ' ', 'g'), left(regexp_replace(current_query(), '\s+', ' ', 'g'), 300);
    end if;
    return true;
end $$;

do $$
declare
    number integer := 0;
    o      record;
begin
    for o in
        with kinds (left_type, right_type, through, names) as (
            select a.t, b.t, 'text', array['=', '<>', '<', '>', '<=', '>=', '||', '~', '!~', '~~', '!~~', '~*']
            from unnest(array['varchar', 'text', 'name', '"char"']) a(t),
                 unnest(array['varchar', 'text', 'name']) b(t)
            union all
            select a.t, b.t, 'oid', array['=', '<>', '<', '>']
            from unnest(array['oid', 'regclass', 'int4', 'regtype', 'regrole', 'regnamespace', 'regproc']) a(t),
                 unnest(array['oid', 'regclass', 'int4', 'regtype', 'regrole', 'regnamespace', 'regproc']) b(t)
            union all
            select a.t, b.t, 'numeric', array['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%']
            from unnest(array['int2', 'int4', 'int8', 'numeric']) a(t),
                 unnest(array['int2', 'int4', 'int8', 'numeric']) b(t)
            union all
            select a.t, b.t, 'float8', array['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/']
            from unnest(array['int4', 'int8', 'float8', 'numeric']) a(t),
                 unnest(array['int4', 'int8', 'float8', 'numeric']) b(t)
            where 'float8' in (a.t, b.t)
        )
        select k.left_type, k.right_type, k.through, n.name, format_type(p.oprresult, null) as result
        from kinds k
        cross join unnest(k.names) n(name)
        join pg_operator p on p.oprname = n.name and p.oprleft = k.through::regtype
            and p.oprright = k.through::regtype and p.oprnamespace = 'pg_catalog'::regnamespace
        where not exists (select from pg_operator p
                          where p.oprname = n.name and p.oprleft = k.left_type::regtype
                            and p.oprright = k.right_type::regtype)
        union all
        -- The server's own are for arrays of anything.
        select t || '[]', t || '[]', t || '[]', n.name, case n.name when '||' then t || '[]' else 'boolean' end
        from unnest(array['text', 'varchar', 'name', 'int2', 'int4', 'int8', 'oid', 'xid8']) t,
             unnest(array['=', '<>', '@>', '<@', '&&', '||']) n(name)
    loop
        number := number + 1;
        execute format(
            'create function public.changefeed_operator_%s(%s, %s) returns %s language sql immutable as
             $body$ select case when public.changefeed_trap(%L)
                    then $1::pg_catalog.%s operator(pg_catalog.%s) $2::pg_catalog.%s end $body$',
            number, o.left_type, o.right_type, o.result,
            format('%s %s %s', o.left_type, o.name, o.right_type), o.through, o.name, o.through);
        execute format(
            'create operator public.%s (leftarg = %s, rightarg = %s, function = public.changefeed_operator_%s)',
            o.name, o.left_type, o.right_type, number);
    end loop;
    if number < 100 then
        raise exception 'only % operators', number;
    end if;
end $$;

do $$
declare
    number integer := 0;
    f      record;
begin
    for f in
        select p.proname, format_type(p.prorettype, null) as result,
               case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end as volatility,
               string_agg(case a.type when 'text'::regtype then 'varchar' when 'regclass'::regtype then 'text'
                                      else format_type(a.type, null) end,
                          ', ' order by a.place) as arguments,
               string_agg(format('$%s%s', a.place,
                                 case when a.type in ('text'::regtype, 'regclass'::regtype)
                                      then '::pg_catalog.' || a.type::regtype else '' end),
                          ', ' order by a.place) as passed
        from pg_proc p
        cross join lateral unnest(p.proargtypes::oid[]) with ordinality a(type, place)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
          and p.provariadic = 0 and '{text,regclass}'::regtype[]::oid[] && p.proargtypes::oid[]
          and (select typtype from pg_type where oid = p.prorettype) <> 'p'
          and not exists (select from unnest(p.proargtypes::oid[]) t(oid) join pg_type y on y.oid = t.oid
                          where y.typtype = 'p')
        group by p.oid, p.proname, p.prorettype
    loop
        begin
            execute format(
                'create function public.%I(%s) returns %s language sql %s as
                 $body$ select case when public.changefeed_trap(%L) then pg_catalog.%I(%s) end $body$',
                f.proname, f.arguments, f.result, f.volatility, format('%s(%s)', f.proname, f.arguments),
                f.proname, f.passed);
            number := number + 1;
        exception when duplicate_function or invalid_function_definition or feature_not_supported then
            -- What cannot be imitated is no trap.
        end;
    end loop;
    if number < 100 then
        raise exception 'only % functions', number;
    end if;
end $$;
