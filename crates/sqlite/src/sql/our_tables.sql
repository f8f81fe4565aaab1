-- Named one by one: the application may have tables whose names begin like ours.
select type, name from sqlite_master
 where type in ('table', 'view')
   and (name in (
     'changefeed_schema', 'changefeed_incarnation', 'changefeed_feed', 'changefeed_shard_def', 'changefeed_numbered',
     'changefeed_progress', 'changefeed_change_id', 'changefeed_consumer', 'changefeed_subscription',
     'changefeed_subscription_shard', 'changefeed_subscription_parked', 'changefeed_lease',
     'changefeed_feed_source', 'changefeed_backfill', 'changefeed_staged', 'changefeed_weight',
     'changefeed_shard', 'changefeed_read', 'changefeed_bounds', 'changefeed_change', 'changefeed_change_row', 'changefeed_captured',
     'changefeed_shard_ulid', 'changefeed_ulid_open', 'changefeed_ulid_probe', 'changefeed_ulid_byte', 'changefeed_ulid_transaction',
     'changefeed_new_ulid', 'changefeed_incident', 'changefeed_ulid_limit', 'changefeed_ulid_source',
     'changefeed_event_trigger', 'changefeed_event_feed',
     'changefeed_event', 'changefeed_event_attempt', 'changefeed_event_backfill',
     'changefeed_event_request', 'changefeed_captured_event', 'changefeed_invoke', 'changefeed_session_open',
     'changefeed_session', 'changefeed_event_log', 'changefeed_event_invocation_logs',
     'changefeed_watched_table', 'changefeed_watch', 'changefeed_global_state',
     'changefeed_watch_counter', 'changefeed_access_token', 'changefeed_instance', 'changefeed_clock')
     or name glob 'changefeed_changes_[0-9]*' or name glob 'changefeed_backlog_[0-9a-f]*'
     or name glob 'changefeed_loading_[0-9a-f]*_[0-9]*'
     or name glob 'changefeed_leases_[0-9a-f]*_[0-9]*')
 order by type = 'table'
