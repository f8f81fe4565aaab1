-- The primary key of a table: each column's name, number and type; the type beneath, by schema and
-- name, and whether it is one of the server's own; whether the column's is an enum; the collation;
-- and the operators that its index goes by, because the same signs may be anybody's operators.
select a.attname::text, a.attnum, a.atttypid,
       format('%I.%I', n.nspname, base.typname),
       base.typnamespace = 'pg_catalog'::regnamespace,
       exists (select from pg_type t where t.oid = a.atttypid and t.typtype = 'e'),
       format_type(a.atttypid, a.atttypmod),
       case when a.attcollation <> 0 and a.attcollation <> base.typcollation
            then format('%I.%I', cn.nspname, co.collname) end,
       (select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname)
        from pg_amop p join pg_operator o on o.oid = p.amopopr
        where p.amopfamily = c.opcfamily and p.amoplefttype = c.opcintype
          and p.amoprighttype = c.opcintype and p.amopstrategy = 3),
       (select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname)
        from pg_amop p join pg_operator o on o.oid = p.amopopr
        where p.amopfamily = c.opcfamily and p.amoplefttype = c.opcintype
          and p.amoprighttype = c.opcintype and p.amopstrategy = 5)
from pg_index x
cross join lateral unnest(x.indkey::smallint[], x.indclass::oid[])
    with ordinality k(attnum, class, place)
join pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.attnum
join pg_opclass c on c.oid = k.class
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
where x.indrelid = $1 and x.indisprimary and k.place <= x.indnkeyatts
order by k.place
