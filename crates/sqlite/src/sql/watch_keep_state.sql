-- ?1 function, ?2 table, ?3 time.
insert into changefeed_global_state as s (function_id, table_id, last_access_time, last_sync_version)
values (?1, ?2, ?3, coalesce(
  (select q._changefeed_change_version - 1 from {leases} q where q._changefeed_parked_time is null
    order by q._changefeed_change_version limit 1),
  (select version from changefeed_watch_counter)))
on conflict (function_id, table_id) do update
   set last_access_time = excluded.last_access_time, last_sync_version = excluded.last_sync_version
 where s.last_access_time < excluded.last_access_time - 1000
