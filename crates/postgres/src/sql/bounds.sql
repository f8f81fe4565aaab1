select s.last_change_sequence_number, d.trimmed_to, changefeed.incarnation()
from changefeed.shard_definition d
join changefeed.shard s on s.feed_id = d.feed_id and s.shard = d.shard
where d.feed_id = $1 and d.shard = $2
