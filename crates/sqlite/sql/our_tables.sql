-- Named one by one: the application may have tables whose names begin like ours.
select type, name from sqlite_master
 where type in ('table', 'view')
   and name in (
     'changefeed_schema', 'changefeed_feed', 'changefeed_shard_def', 'changefeed_numbered',
     'changefeed_progress', 'changefeed_change_id', 'changefeed_consumer', 'changefeed_lease',
     'changefeed_feed_source', 'changefeed_backfill', 'changefeed_staged', 'changefeed_weight',
     'changefeed_shard', 'changefeed_change', 'changefeed_change_row', 'changefeed_captured',
     'changefeed_shard_ulid', 'changefeed_incident', 'changefeed_ulid_source',
     'changefeed_event_salt', 'changefeed_event_trigger', 'changefeed_event_feed',
     'changefeed_event', 'changefeed_event_attempt', 'changefeed_event_backfill',
     'changefeed_event_staged', 'changefeed_captured_event', 'changefeed_session_open',
     'changefeed_session', 'changefeed_event_log', 'changefeed_event_invocation_logs')
 order by type = 'table'
