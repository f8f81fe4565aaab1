-- There is no limit here: the reader stops when its page is full. A limit would count the rows of
-- a change that has several of them, and one within a subquery costs more than it saves.
select n.change_sequence_number, n.change_id{columns}
  from changefeed_numbered n{join}
 where n.feed_id = ?1 and n.shard = ?2
   and n.change_sequence_number > ?3 and n.change_sequence_number <= ?4
 order by n.change_sequence_number
