-- Before a feed gets another number of shards ($2 to $3 are those that its table is spread over): whether a backfill is at
-- work, whether there are others that somebody has added, and the next number of a shard.
select exists (select from changefeed.backfill b where b.feed_id = $1 and b.finished_at is null),
       exists (select from changefeed.shard_definition d
               where d.feed_id = $1 and not d.closed and d.shard not between $2 and $3),
       (select max(d.shard)::integer + 1 from changefeed.shard_definition d where d.feed_id = $1)
