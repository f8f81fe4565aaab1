select d.feed_id, d.shard,
       coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                  where n.feed_id = d.feed_id and n.shard = d.shard), 0),
       d.frontier
  from changefeed_shard_def d
