select n.nspname::text, c.relname::text, c.relkind::text,
       exists (select from pg_index x where x.indrelid = c.oid and x.indisprimary and not x.indimmediate)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = $1
