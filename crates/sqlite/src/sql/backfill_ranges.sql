-- Where each shard goes on: at its frontier, or where nothing is yet.
select d.shard, d.start, d.trimmed,
       coalesce(d.frontier,
                max(d.start - ?2, d.trimmed, 0,
                    coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                               where n.feed_id = d.feed_id and n.shard = d.shard
                                 and n.change_sequence_number <= d.start), 0)))
  from changefeed_shard_def d
 where d.feed_id = ?1
