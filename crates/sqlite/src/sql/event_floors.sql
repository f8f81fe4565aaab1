-- For each shard of an event feed that consumers read, the oldest event that one of them has not
-- read.
select c.feed_id, c.shard,
       (select n.change_id
          from changefeed_numbered n
          join changefeed_event e on e.change_id = n.change_id
         where n.feed_id = c.feed_id and n.shard = c.shard
           and n.change_sequence_number > c.cursor
         order by n.change_sequence_number limit 1)
  from (select k.feed_id, k.shard, min(cast(k.cursor as integer)) as cursor
          from changefeed_consumer k
          join changefeed_event_feed f on f.feed_id = k.feed_id
         group by k.feed_id, k.shard) c
