-- Counting what is committed and waits must not wait for writers.
select s.shard, s.sweep_group, s.last_change_sequence_number,
       (select count_big(*) from (select top (100000) c.change_id
                                  from changefeed.change c with (readcommittedlock, readpast)
                                  where c.feed_id = s.feed_id and c.shard = s.shard
                                    and c.change_sequence_number is null) waiting),
       datediff_big(millisecond, s.last_sweep_time, sysutcdatetime())
from changefeed.shard s
where s.feed_id = @P1
order by s.shard
