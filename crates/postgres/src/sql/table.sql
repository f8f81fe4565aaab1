select n.nspname::text, c.relname::text, c.relkind::text
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = $1
