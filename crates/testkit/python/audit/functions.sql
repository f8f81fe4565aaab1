-- The functions in our schema, and whether they were called. What the planner puts in the place of its call is
-- not counted by the server. No row in a database without traps. Numbers in the names of generated functions are left out.
select d.oid, coalesce((
    select jsonb_agg(jsonb_build_object(
        'name', regexp_replace(p.oid::regprocedure::text, '[0-9a-f]{16}|(?<=_)[0-9]+', 'N', 'g'),
        'inlined', l.lanname = 'sql' and p.proconfig is null and not p.prosecdef,
        'called', coalesce(s.calls, 0) > 0))
    from pg_proc p
    join pg_language l on l.oid = p.prolang
    left join pg_stat_user_functions s on s.funcid = p.oid
    where p.pronamespace = to_regnamespace('changefeed')), '[]')::text
from pg_database d
where d.datname = current_database() and to_regprocedure('public.changefeed_trap(text)') is not null
