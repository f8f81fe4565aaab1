-- Every consumer with its lag. Live numbers are gapless, so they are counted by subtraction;
-- only what was backfilled below the start has to be looked at. Of a feed that is ordered by ULIDs
-- only the time between its newest ULID and the consumer's is known.
select c.name::text as name, f.name::text as feed, c.shard, c.cursor,
       coalesce(lag.changes, 0) as lag_changes,
       case when c.cursor !~ '^[0-9]{1,18}$' then coalesce(ulid_lag.ms, 0)
            when lag.changes = 0 then 0
            else coalesce(
           (select (extract(epoch from clock_timestamp() - p.swept_at) * 1000)::bigint
            from changefeed.progress p
            where p.feed_id = c.feed_id and p.shard = c.shard
              and p.last_change_sequence_number > lag.number
            order by p.last_change_sequence_number, p.sweep_id
            limit 1), 0) end as lag_ms,
       (extract(epoch from clock_timestamp() - c.updated_at) * 1000)::bigint as idle_ms,
       coalesce(lag.number < d.trimmed_to, false) as expired
from changefeed.consumer c
join changefeed.feed f on f.feed_id = c.feed_id
join changefeed.shard_definition d on d.feed_id = c.feed_id and d.shard = c.shard
join changefeed.shard s on s.feed_id = c.feed_id and s.shard = c.shard
left join lateral (
    select n.number,
           greatest(0, s.last_change_sequence_number - greatest(n.number, d.start, d.trimmed_to))
           + case when n.number >= d.start then 0 else
               (select count(*) from changefeed.numbered x
                where x.feed_id = c.feed_id and x.shard = c.shard
                  and x.change_sequence_number > n.number
                  and x.change_sequence_number <= d.start) end as changes
    -- The planner may look at this before the condition below.
    from (select case when c.cursor ~ '^[0-9]{1,18}$' then c.cursor::bigint end as number) n
) lag on c.cursor ~ '^[0-9]{1,18}$'
left join lateral (
    -- The first ten characters of a ULID are its time, five bits each.
    select greatest(0, (extract(epoch from u.time) * 1000)::bigint
        - (select sum((strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr(c.cursor, i, 1)) - 1)::bigint
                      << (5 * (10 - i)))
           from generate_series(1, 10) i))::bigint as ms
    from changefeed.feed_source o
    join changefeed.shard_ulid u on u.feed_id = o.ulid_feed and u.shard_id = c.shard
    where o.feed_id = c.feed_id
) ulid_lag on c.cursor !~ '^[0-9]{1,18}$'
order by f.feed_id, c.name, c.shard
