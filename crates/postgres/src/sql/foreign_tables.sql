-- Tables in our schema that no migration of ours has made.
select c.relname::text
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'changefeed' and c.relkind in ('r', 'p', 'm', 'f')
  and c.relname not in (
      'schema_version', 'incarnation', 'feed', 'feed_source', 'feed_reader', 'shard_definition', 'progress', 'numbered',
      'inbox_0', 'inbox_1', 'inbox_2', 'inbox_3', 'inbox_segment', 'cluster', 'clock', 'lease', 'change_row', 'consumer',
      'backfill', 'shard_ulid', 'incident', 'ulid_guard', 'ulid_limit', 'event_trigger', 'event',
      'event_attempt', 'event_backfill', 'event_invoker', 'event_request', 'event_gap', 'event_nested', 'watch',
      'watched_table',
      'global_state', 'access_token', 'instance', 'subscription', 'subscription_shard',
      'subscription_parked')
  and c.relname !~ '^(changes_[0-9]+|leases_[0-9a-f]{16}_[0-9]+)$'
order by 1
