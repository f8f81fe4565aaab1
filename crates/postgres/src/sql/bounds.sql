select s.last_change_sequence_number, d.trimmed_to, changefeed.incarnation(),
       changefeed.is_over(d.feed_id, d.shard, s.last_change_sequence_number)
from changefeed.shard_definition d
join changefeed.shard s on s.feed_id = d.feed_id and s.shard = d.shard
where d.feed_id = $1 and d.shard = $2
