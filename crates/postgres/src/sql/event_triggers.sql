select t.trigger_id, t.definition::text, t.paused_because, n.nspname::text, c.relname::text,
       t.source, t.signatures
from changefeed.event_trigger t
left join pg_class c on c.oid = t.source
left join pg_namespace n on n.oid = c.relnamespace
where t.dropped_at is null
order by t.name
