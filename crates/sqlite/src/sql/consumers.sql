-- Every consumer with its lag. Live numbers are gapless, so they are counted by subtraction;
-- only what was put below the start has to be looked at. Of a feed that is ordered by ULIDs the
-- time of its newest one is all that is known.
select c.name as name, f.name as feed, c.shard, c.cursor,
       max(0, s.last_change_sequence_number - max(c.number, d.start, d.trimmed))
       + (select count(*) from changefeed_numbered n
           where n.feed_id = c.feed_id and n.shard = c.shard
             and n.change_sequence_number > c.number and n.change_sequence_number <= d.start) as lag_changes,
       -- The mark at or before the oldest unread change.
       coalesce((select max(0, cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
                               - p.marked_at)
                   from changefeed_progress p
                  where p.feed_id = c.feed_id and p.shard = c.shard
                    and p.change_sequence_number <= (
                          select min(n.change_sequence_number) from changefeed_numbered n
                           where n.feed_id = c.feed_id and n.shard = c.shard
                             and n.change_sequence_number > c.number)
                  order by p.change_sequence_number desc limit 1), 0) as lag_ms,
       max(0, cast(coalesce(julianday('now') - julianday(c.updated_at), 0) * 86400000.0 as integer)) as idle_ms,
       u.time as newest_ms,
       us.feed_id is null and c.number < d.trimmed as expired
  from (select *, cast(cursor as integer) as number from changefeed_consumer) c
  join changefeed_feed f on f.feed_id = c.feed_id
  join changefeed_shard_def d on d.feed_id = c.feed_id and d.shard = c.shard
  join changefeed_shard s on s.feed_id = c.feed_id and s.shard = c.shard
  left join changefeed_ulid_source us on us.feed_id = c.feed_id
  left join changefeed_shard_ulid u on u.feed_id = us.ulid_feed and u.shard_id = c.shard
 order by f.feed_id, c.name, c.shard
