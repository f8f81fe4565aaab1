-- The primary key of a table: name, the type beneath (as it is now, and by schema and name) and
-- the collation of each column.
select a.attname::text,
       format_type(a.atttypid, a.atttypmod),
       format('%I.%I', n.nspname, base.typname),
       case when a.attcollation <> 0 and a.attcollation <> base.typcollation
            then format('%I.%I', cn.nspname, co.collname) end
from pg_index x
cross join lateral unnest(x.indkey::smallint[]) with ordinality k(attnum, place)
join pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.attnum
cross join lateral (
    with recursive beneath as (
        select t.oid, t.typtype, t.typbasetype, t.typnamespace, t.typname, t.typcollation
        from pg_type t where t.oid = a.atttypid
        union all
        select t.oid, t.typtype, t.typbasetype, t.typnamespace, t.typname, t.typcollation
        from beneath b join pg_type t on t.oid = b.typbasetype
        where b.typtype = 'd'
    )
    select b.typnamespace, b.typname, b.typcollation from beneath b where b.typtype <> 'd'
) base
join pg_namespace n on n.oid = base.typnamespace
left join pg_collation co on co.oid = a.attcollation
left join pg_namespace cn on cn.oid = co.collnamespace
where x.indrelid = $1 and x.indisprimary
order by k.place
