-- Who could have us run their code, although they are neither a superuser nor a member of the role that
-- owns our schema: those who may create something in it (a function that fits a call better than ours
-- does), who own something in it, or who may put triggers on our tables. What it is, and what mends it.
with ours as materialized (
    select n.oid, n.nspowner, n.nspacl from pg_namespace n where n.nspname = 'changefeed'
),
found as (
    select a.grantee as who, 'may create objects in schema changefeed' as what,
           'revoke create on schema changefeed from %s' as advice
    from ours o, aclexplode(o.nspacl) a
    where a.privilege_type = 'CREATE'
    union all
    select a.grantee, format('may put triggers on changefeed.%I', c.relname),
           format('revoke trigger on changefeed.%I from %%s', c.relname)
    from ours o join pg_class c on c.relnamespace = o.oid, aclexplode(c.relacl) a
    where a.privilege_type = 'TRIGGER'
    union all
    select c.relowner, format('owns changefeed.%I', c.relname),
           format('alter table changefeed.%I owner to %s, or drop it', c.relname, o.nspowner::regrole)
    from ours o join pg_class c on c.relnamespace = o.oid
    where c.relkind not in ('i', 'I', 't', 'c')
    union all
    select p.proowner, format('owns the function %s', p.oid::regprocedure),
           format('alter routine %s owner to %s, or drop it', p.oid::regprocedure, o.nspowner::regrole)
    from ours o join pg_proc p on p.pronamespace = o.oid
    union all
    select p.oprowner, format('owns the operator %s', p.oid::regoperator), 'drop it'
    from ours o join pg_operator p on p.oprnamespace = o.oid
    union all
    select t.typowner, format('owns the type %s', format_type(t.oid, null)), 'drop it'
    from ours o join pg_type t on t.typnamespace = o.oid
    where t.typrelid = 0 and t.typcategory <> 'A'
)
select format('%s %s', case f.who when 0 then 'everybody' else f.who::regrole::text end, f.what),
       format(f.advice, case f.who when 0 then 'public' else f.who::regrole::text end)
from found f cross join ours o
where f.who <> o.nspowner
  and (f.who = 0 or not (pg_has_role(f.who, o.nspowner, 'member')))
order by 1
limit 20
