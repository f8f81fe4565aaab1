-- What moves when there is something new to read: the end of a shard, of its ULIDs, or of a
-- backfill. Read uncommitted, so that a look waits for nobody; who is woken reads properly. Not so
-- the ULIDs: nothing else moves when they are committed. Their row is locked for a moment only.
select s.feed_id, s.shard,
       concat(s.last_change_sequence_number, '/', s.backfilled_to, '/',
              convert(varchar(30), b.finished_at, 126), '/',
              convert(varchar(30), u.[time], 126), '/', u.ulid_low)
from changefeed.shard s with (readuncommitted)
left join changefeed.backfill b with (readuncommitted) on b.feed_id = s.feed_id
left join changefeed.feed_source o with (readuncommitted) on o.feed_id = s.feed_id
left join changefeed.shard_ulid u on u.feed_id = o.ulid_feed and u.shard_id = s.shard
