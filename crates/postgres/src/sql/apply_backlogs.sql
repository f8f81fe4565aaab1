-- The tables whose backlogs are about to be made, changed or dropped, always in the same order.
select coalesce(w.table_id, to_regclass(p.source)::oid::bigint) as table_id
from unnest($1::text[], $2::text[]) p (source, name)
left join changefeed.watch w on w.name = p.name
where coalesce(w.table_id, to_regclass(p.source)::oid::bigint) is not null
union
select w.table_id from changefeed.watch w where w.name = any($3::text[])
order by 1
