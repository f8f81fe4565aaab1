-- Which of these tables there are, and may be read.
select array_agg(coalesce(has_table_privilege(to_regclass(n.name)::oid, 'select'), false) order by n.place)
from unnest($1::text[]) with ordinality n(name, place)
