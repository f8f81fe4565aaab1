select b.unprocessed, b.leased, b.parked, b.last_error, coalesce(s.last_sync_version, 0),
       (extract(epoch from clock_timestamp() - s.last_access_time) * 1000)::bigint,
       b.suggested_workers
from changefeed.watch_backlog b
left join changefeed.global_state s
    on s.function_id = b.function_id and s.table_id = b.table_id
where b.name = $1
