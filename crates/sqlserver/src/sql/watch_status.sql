select c.unprocessed, c.leased, c.parked, c.last_error, isnull(s.last_sync_version, 0),
       datediff_big(millisecond, s.last_access_time, sysutcdatetime()), w.max_changes_per_worker
from changefeed.count_{function_id}() c
join changefeed.watch w on w.function_id = '{function_id}'
left join changefeed.global_state s on s.function_id = w.function_id and s.table_id = w.table_id
