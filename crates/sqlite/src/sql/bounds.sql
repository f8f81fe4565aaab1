-- The ends of a shard; the newest number is one seek from the end of its range.
select d.start, d.trimmed, d.frontier, (select i.incarnation from changefeed_incarnation i order by i.number desc limit 1),
       max(d.start, d.trimmed,
           coalesce((select max(n.change_sequence_number) from changefeed_numbered n
                      where n.feed_id = ?1 and n.shard = ?2), 0)),
       d.closed
  from changefeed_shard_def d
 where d.feed_id = ?1 and d.shard = ?2
