-- Roles that may write in ULID transactions, and whose sessions the owner of our functions cannot see; only where there
-- were such transactions.
select pg_catalog.quote_ident(o.rolname), pg_catalog.string_agg(pg_catalog.quote_ident(r.rolname), ', ' order by r.rolname)
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'changefeed'
join pg_catalog.pg_roles o on o.oid = p.proowner
join pg_catalog.pg_roles r on r.rolcanlogin and not r.rolsuper
where p.proname = 'report_incident'
  and pg_catalog.has_schema_privilege(r.oid, n.oid, 'usage')
  and exists (select from pg_catalog.pg_proc w
              where w.pronamespace = n.oid and w.proname in ('begin_ulid_transaction', 'begin_ulid_shards', 'ulid_begin')
                and pg_catalog.has_function_privilege(r.oid, w.oid, 'execute'))
  and not pg_catalog.pg_has_role(o.oid, 'pg_read_all_stats', 'usage')
  and not pg_catalog.pg_has_role(o.oid, r.oid, 'usage')
  and exists (select from changefeed.shard_ulid)
group by o.rolname
