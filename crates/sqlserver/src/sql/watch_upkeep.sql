-- Everything up to here is processed or parked; and an instance has looked.
declare @low bigint = (select min(v.version) from (
    select min(q._changefeed_change_version) as version from changefeed.{leases} q
    where q._changefeed_attempt_count = 0 and q._changefeed_parked_time is null
    union all
    select min(q._changefeed_change_version) from changefeed.{leases} q
    where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null) v);
set @low = isnull(@low - 1, (select t.last_version from changefeed.watched_table t where t.table_id = {table_id}));
update changefeed.global_state
set last_sync_version = case when last_sync_version < @low then @low else last_sync_version end,
    last_access_time = sysutcdatetime()
where function_id = {function_id} and table_id = {table_id}
  and last_access_time < dateadd(second, -1, sysutcdatetime())
