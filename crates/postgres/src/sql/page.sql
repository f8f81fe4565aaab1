select n.change_sequence_number, n.change_id
from changefeed.numbered n
where n.feed_id = $1 and n.shard = $2 and n.change_sequence_number > $3
  -- While a backfill is under way, a reader of backfilled numbers stops at its frontier instead
  -- of jumping over what is still to come.
  and n.change_sequence_number <= (
      select case when $3 < d.start and exists (select from changefeed.backfill b
                                                where b.feed_id = $1 and b.finished_at is null)
                  then d.start else 9223372036854775807 end
      from changefeed.shard_definition d
      where d.feed_id = $1 and d.shard = $2)
order by n.change_sequence_number
limit $4
