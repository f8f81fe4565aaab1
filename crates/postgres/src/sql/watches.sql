select w.name::text, w.function_id, w.table_id, n.nspname::text, c.relname::text,
       w.definition::text
from changefeed.watch w
join changefeed.watched_table t on t.table_id = w.table_id
left join pg_class c on c.oid = t.source
left join pg_namespace n on n.oid = c.relnamespace
order by w.name
