-- Named one by one: the application may have tables whose names begin like ours.
select type, name from sqlite_master
 where type in ('table', 'view')
   and name in (
     'changefeed_schema', 'changefeed_feed', 'changefeed_shard_def', 'changefeed_numbered',
     'changefeed_progress', 'changefeed_change_id', 'changefeed_consumer', 'changefeed_lease',
     'changefeed_feed_source', 'changefeed_backfill', 'changefeed_staged', 'changefeed_weight',
     'changefeed_shard', 'changefeed_change', 'changefeed_change_row', 'changefeed_captured',
     'changefeed_shard_ulid', 'changefeed_incident', 'changefeed_ulid_source')
 order by type = 'table'
