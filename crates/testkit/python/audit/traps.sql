-- A `public` schema as an attacker would leave it: operators, functions and aggregates that fit
-- better than the server's own wherever a value is a varchar, a name, or a number of another kind. Each
-- does what the server's own does, so that nothing else breaks, and tells the server's log if it was
-- one of our sessions or functions that ran it. Databases of the tests are made after this one.

create function public.changefeed_trap(what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    stack text;
begin
    get diagnostics stack = pg_context;
    if current_setting('application_name') = 'changefeed' or stack ~ 'function changefeed\.' then
        raise log 'changefeed-trap-sprung: % by % in %', what, session_user,
            replace(stack, E'\n', ' | ');
    end if;
end $$;

create procedure public.changefeed_lay_operators() language plpgsql as $$
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
            from unnest(array['oid', 'regclass', 'int4', 'regtype']) a(t),
                 unnest(array['oid', 'regclass', 'int4', 'regtype']) b(t)
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
        select k.left_type, k.right_type, k.through, n.name,
               (select format_type(p.oprresult, null) from pg_operator p
                where p.oprname = n.name and p.oprleft = k.through::regtype
                  and p.oprright = k.through::regtype
                  and p.oprnamespace = 'pg_catalog'::regnamespace) as result
        from kinds k, unnest(k.names) n(name)
        where not exists (select from pg_operator p
                          where p.oprname = n.name and p.oprleft = k.left_type::regtype
                            and p.oprright = k.right_type::regtype)
    loop
        continue when o.result is null;
        number := number + 1;
        execute format(
            'create function public.changefeed_operator_%s(a %s, b %s) returns %s language plpgsql as
             $body$ begin perform public.changefeed_trap(%L);
                    return a::pg_catalog.%s operator(pg_catalog.%s) b::pg_catalog.%s; end $body$',
            number, o.left_type, o.right_type, o.result,
            format('%s %s %s', o.left_type, o.name, o.right_type), o.through, o.name, o.through);
        execute format(
            'create operator public.%s (leftarg = %s, rightarg = %s, function = public.changefeed_operator_%s)',
            o.name, o.left_type, o.right_type, number);
    end loop;
    raise notice '% operators', number;
end $$;

create procedure public.changefeed_lay_functions() language plpgsql as $$
declare
    number integer := 0;
    f      record;
begin
    for f in
        select p.proname, format_type(p.prorettype, null) as result,
               string_agg(format('p%s %s', a.place,
                   case when a.type = 'text'::regtype then 'varchar' else format_type(a.type, null) end), ', '
                   order by a.place) as arguments,
               string_agg(format('p%s%s', a.place,
                   case when a.type = 'text'::regtype then '::pg_catalog.text' else '' end), ', '
                   order by a.place) as passed
        from pg_proc p
        cross join lateral unnest(p.proargtypes::oid[]) with ordinality a(type, place)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
          and p.provariadic = 0 and 'text'::regtype = any (p.proargtypes::oid[])
          and (select typtype from pg_type where oid = p.prorettype) <> 'p'
          and not exists (select from unnest(p.proargtypes::oid[]) t(oid) join pg_type y on y.oid = t.oid
                          where y.typtype = 'p')
        group by p.oid, p.proname, p.prorettype
    loop
        begin
            execute format(
                'create function public.%I(%s) returns %s language plpgsql as
                 $body$ begin perform public.changefeed_trap(%L);
                        return pg_catalog.%I(%s); end $body$',
                f.proname, f.arguments, f.result, f.proname || '(' || f.arguments || ')', f.proname, f.passed);
            number := number + 1;
        exception when others then
            -- What cannot be imitated is no trap.
        end;
    end loop;
    raise notice '% functions', number;
end $$;

call public.changefeed_lay_operators();
call public.changefeed_lay_functions();
drop procedure public.changefeed_lay_operators();
drop procedure public.changefeed_lay_functions();
