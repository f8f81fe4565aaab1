-- Shards whose ULIDs tell a time further in the future than a time hint may be.
select top (20) s.feed_id, s.shard_id, datediff_big(millisecond, sysutcdatetime(), s.[time])
from changefeed.shard_ulid s with (readuncommitted) cross join changefeed.ulid_limit l
where datediff_big(millisecond, sysutcdatetime(), s.[time]) > l.ahead_milliseconds
order by s.feed_id, s.shard_id
