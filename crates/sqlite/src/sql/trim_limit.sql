-- How far a shard may be trimmed by age: up to the first mark that is too young. A number may be
-- a second younger than the mark before it.
select p.change_sequence_number - 1
  from changefeed_progress p
 where p.feed_id = ?1 and p.shard = ?2
   and p.marked_at + 1000 > cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - ?3
 order by p.change_sequence_number
 limit 1
