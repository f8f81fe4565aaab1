-- Before a feed gets another number of shards (?2 to ?3 are those that its table is spread over): whether a backfill is at
-- work, whether there are others that somebody has added, and the next number of a shard.
select exists (select 1 from changefeed_backfill where feed_id = ?1 and finished = 0),
       exists (select 1 from changefeed_shard_def
                where feed_id = ?1 and closed = 0 and shard not between ?2 and ?3),
       (select max(shard) + 1 from changefeed_shard_def where feed_id = ?1)
