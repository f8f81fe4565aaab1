-- What moves when there is something new to read: the end of a shard, of its ULIDs, or of a
-- backfill. Only what is committed counts: somebody who is woken before the commit finds nothing, and
-- nothing moves at the commit to wake them again. The rows are locked for moments only.
select s.feed_id, s.shard,
       concat(s.last_change_sequence_number, N'/', s.backfilled_to, N'/',
              convert(varchar(30), b.finished_at, 126), N'/',
              convert(varchar(30), u.[time], 126), N'/', u.ulid_low, N'/', s.closed)
from changefeed.shard s
left join changefeed.backfill b on b.feed_id = s.feed_id
left join changefeed.feed_source o on o.feed_id = s.feed_id
left join changefeed.shard_ulid u on u.feed_id = o.ulid_feed and u.shard_id = s.shard
