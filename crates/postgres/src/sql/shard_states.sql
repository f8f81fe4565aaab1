select s.shard, s.sweep_group, s.last_change_sequence_number,
       (select count(*) from (select from changefeed.pending p
                              where p.feed_id = s.feed_id and p.shard = s.shard
                              limit 100000) waiting),
       (extract(epoch from clock_timestamp() - s.last_sweep_time) * 1000)::bigint
from changefeed.shard s
where s.feed_id = $1
order by s.shard
