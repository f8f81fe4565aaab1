-- How large the inbox is, whose it is, and whether its owner and we may see other sessions'
-- snapshots. No row where nothing is installed.
select sum(pg_total_relation_size(c.oid))::bigint, min(r.rolname)::text,
       bool_and(has_table_privilege(c.relowner, 'pg_catalog.pg_stat_activity', 'select')
                and has_table_privilege(c.relowner, 'pg_catalog.pg_replication_slots', 'select')
                and has_function_privilege(c.relowner, 'pg_catalog.pg_stat_clear_snapshot()',
                                           'execute')),
       has_table_privilege('pg_catalog.pg_stat_activity', 'select')
       and has_table_privilege('pg_catalog.pg_replication_slots', 'select')
from pg_class c
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'changefeed'
join pg_roles r on r.oid = c.relowner
where c.relname in ('inbox_0', 'inbox_1', 'inbox_2', 'inbox_3')
having count(*) = 4
