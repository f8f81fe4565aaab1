-- Shards whose ULIDs tell a time further in the future than a time hint may be.
select s.feed_id, s.shard_id, (extract(epoch from s.time - clock_timestamp()) * 1000)::bigint
from changefeed.shard_ulid s, changefeed.ulid_limit l
where s.time > clock_timestamp() + l.ahead_milliseconds * interval '1 millisecond'
order by s.feed_id, s.shard_id
limit 20
