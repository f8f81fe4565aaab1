-- Every consumer with its lag. Live numbers are gapless, so they are counted by subtraction;
-- only what was backfilled below the start has to be looked at.
select c.name::text, f.name::text, c.shard, c.cursor,
       lag.changes,
       case when lag.changes = 0 then 0 else coalesce(
           (select (extract(epoch from clock_timestamp() - p.swept_at) * 1000)::bigint
            from changefeed.progress p
            where p.feed_id = c.feed_id and p.shard = c.shard
              and p.last_change_sequence_number > c.cursor::bigint
            order by p.last_change_sequence_number, p.sweep_id
            limit 1), 0) end,
       (extract(epoch from clock_timestamp() - c.updated_at) * 1000)::bigint
from changefeed.consumer c
join changefeed.feed f on f.feed_id = c.feed_id
join changefeed.shard_definition d on d.feed_id = c.feed_id and d.shard = c.shard
join changefeed.shard s on s.feed_id = c.feed_id and s.shard = c.shard
cross join lateral (
    select greatest(0, s.last_change_sequence_number
                       - greatest(c.cursor::bigint, d.start, d.trimmed_to))
           + case when c.cursor::bigint >= d.start then 0 else
               (select count(*) from changefeed.numbered n
                where n.feed_id = c.feed_id and n.shard = c.shard
                  and n.change_sequence_number > c.cursor::bigint
                  and n.change_sequence_number <= d.start) end as changes
) lag
order by f.feed_id, c.name, c.shard
