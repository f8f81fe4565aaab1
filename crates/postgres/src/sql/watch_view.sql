create view changefeed.{view} as
select c.unprocessed, c.leased, c.parked,
       ceil(c.unprocessed::numeric / w.max_changes_per_worker)::bigint as suggested_workers
from changefeed.watch w cross join lateral changefeed.watch_count(w.function_id) c
where w.function_id = {function_id};
select changefeed.hand_over({name})
