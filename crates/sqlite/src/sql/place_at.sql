-- The newest number that a shard gave before a time, in milliseconds since 1970: the one before the first mark that is
-- not older. A number may be a second younger than the mark before it.
select p.change_sequence_number - 1
  from changefeed_progress p
 where p.feed_id = ?1 and p.shard = ?2 and p.marked_at + 1000 > ?3
 order by p.change_sequence_number
 limit 1
