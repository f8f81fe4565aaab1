-- Everything up to here is processed or parked: a floor for later looks, and for people to see.
with low as materialized (
    select coalesce(
        (select q._changefeed_change_version - 1 from changefeed.{leases} q
         where q._changefeed_change_version > {low} and q._changefeed_parked_time is null
         order by q._changefeed_change_version limit 1), {floor}) as version
),
kept as (
    insert into changefeed.global_state as s (function_id, table_id, last_sync_version)
    select {function_id}, {table_id}, l.version from low l
    -- A row in conflict is locked, and a transaction begun, before its own condition is looked at.
    where not exists (select from changefeed.global_state s
                      where s.function_id = {function_id} and s.table_id = {table_id}
                        and s.last_access_time >= clock_timestamp() - interval '1 second')
    on conflict (function_id, table_id) do update
    set last_sync_version = greatest(s.last_sync_version, excluded.last_sync_version),
        last_access_time = clock_timestamp()
    where s.last_access_time < clock_timestamp() - interval '1 second'
)
select l.version, {altered} from low l
