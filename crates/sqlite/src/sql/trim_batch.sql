-- The number up to which a batch reaches, and how many changes that removes.
select max(change_sequence_number), count(*)
  from (select change_sequence_number from changefeed_numbered
         where feed_id = ?1 and shard = ?2 and change_sequence_number <= ?3
         order by change_sequence_number limit ?4)
