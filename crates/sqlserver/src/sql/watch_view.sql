create view changefeed.backlog_{function_id} as
select c.unprocessed, c.leased, c.parked,
       (c.unprocessed + w.max_changes_per_worker - 1) / w.max_changes_per_worker as suggested_workers
from changefeed.count_{function_id}() c
join changefeed.watch w on w.function_id = '{function_id}'
