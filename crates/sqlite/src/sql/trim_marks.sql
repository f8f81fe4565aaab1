-- The marks of what is gone, but for the last: it tells the age of the oldest that is kept.
delete from changefeed_progress
 where feed_id = ?1 and shard = ?2
   and change_sequence_number < (
         select max(change_sequence_number) from changefeed_progress
          where feed_id = ?1 and shard = ?2 and change_sequence_number <= ?3)
