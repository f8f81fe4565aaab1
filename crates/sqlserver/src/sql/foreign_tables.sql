-- Tables in our schema that are not ours: a user whose default schema it is may make some.
select o.name from sys.objects o
where o.schema_id = schema_id(N'changefeed') and o.type = 'U'
  and o.name not in (N'schema_version', N'incarnation', N'feed', N'shard', N'progress', N'feed_source', N'feed_reader', N'change',
                     N'backfill', N'lease', N'clock', N'change_row', N'consumer', N'shard_ulid', N'ulid_limit', N'incident',
                     N'ulid_life', N'ulid_pulse', N'event_trigger', N'event', N'event_attempt', N'event_request',
                     N'event_backfill', N'event_invoker', N'access_token', N'instance', N'watch',
                     N'watched_table', N'global_state', N'subscription', N'subscription_shard',
                     N'subscription_parked')
  and o.name not like N'leases[_]%' and o.name not like N'changes[_]%'
order by o.name
