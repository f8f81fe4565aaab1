-- Columns in order, with their place in the primary key (which INCLUDE only adds columns to that are
-- no part of it), the type beneath a domain, the number of their type, and their own number.
select a.attname::text,
       array_position((x.indkey::smallint[])[0:x.indnkeyatts - 1], a.attnum)::integer,
       format_type(base.oid, null), a.atttypid, a.attnum
from pg_attribute a
cross join lateral (
    with recursive beneath as (
        select t.oid, t.typtype, t.typbasetype
        from pg_type t where t.oid = a.atttypid
        union all
        select t.oid, t.typtype, t.typbasetype
        from beneath b join pg_type t on t.oid = b.typbasetype
        where b.typtype = 'd'
    )
    select b.oid from beneath b where b.typtype <> 'd'
) base
left join pg_index x on x.indrelid = a.attrelid and x.indisprimary
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum
