-- Before a feed gets another number of shards (@P2 to @P3 are those that its table is spread over): whether a backfill is at
-- work, whether there are others that somebody has added, and the next number of a shard.
select convert(bit, case when exists (select 1 from changefeed.backfill b
                                      where b.feed_id = @P1 and b.finished_at is null) then 1 else 0 end),
       convert(bit, case when exists (select 1 from changefeed.shard s
                                      where s.feed_id = @P1 and s.closed = 0 and s.shard not between @P2 and @P3)
                         then 1 else 0 end),
       (select max(convert(int, s.shard)) + 1 from changefeed.shard s where s.feed_id = @P1)
