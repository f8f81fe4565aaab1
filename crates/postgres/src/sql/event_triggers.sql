select t.trigger_id, t.definition::text, t.paused_because, n.nspname::text, c.relname::text,
       t.source::oid, t.signatures, (t.schema_name, t.table_name) is distinct from (n.nspname, c.relname),
       t.columns_of is distinct from changefeed.place_of(t.source)
from changefeed.event_trigger t
left join pg_class c on c.oid = t.source
left join pg_namespace n on n.oid = c.relnamespace
where t.dropped_at is null
order by t.name
