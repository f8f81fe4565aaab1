-- What moves when there is something new to read: the end of a shard, or of a backfill. Read
-- uncommitted, so that a look waits for nobody; who is woken reads properly.
select s.feed_id, s.shard,
       concat(s.last_change_sequence_number, '/', s.backfilled_to, '/',
              convert(varchar(30), b.finished_at, 126))
from changefeed.shard s with (readuncommitted)
left join changefeed.backfill b with (readuncommitted) on b.feed_id = s.feed_id
