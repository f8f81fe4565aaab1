-- Every consumer with its lag. Live numbers are gapless, so they are counted by subtraction; only
-- what was backfilled below the start has to be looked at. Of a feed that is ordered by ULIDs only
-- the time between its newest ULID, newest_ms, and the consumer's is known.
select convert(nvarchar(100), c.name) as name, convert(nvarchar(100), f.name) as feed, c.shard,
       convert(nvarchar(26), c.[cursor]) as [cursor],
       convert(bigint, isnull(g.lag, 0)) as lag_changes,
       case when isnull(g.lag, 0) = 0 then convert(bigint, 0) else isnull(
           (select top (1) datediff_big(millisecond, p.swept_at, sysutcdatetime())
            from changefeed.progress p
            where p.feed_id = c.feed_id and p.shard = c.shard
              and p.last_change_sequence_number > n.number
            order by p.last_change_sequence_number), 0) end as lag_ms,
       datediff_big(millisecond, c.updated_at, sysutcdatetime()) as idle_ms,
       convert(bit, case when n.number < s.trimmed_to then 1 else 0 end) as expired,
       datediff_big(millisecond, '1970-01-01', u.[time]) as newest_ms
from changefeed.consumer c
join changefeed.feed f on f.feed_id = c.feed_id
join changefeed.shard s on s.feed_id = c.feed_id and s.shard = c.shard
left join changefeed.feed_source o on o.feed_id = c.feed_id
left join changefeed.shard_ulid u on u.feed_id = o.ulid_feed and u.shard_id = c.shard
cross apply (select try_convert(bigint, c.[cursor]) as number,
                    isnull(s.start, s.last_change_sequence_number) as start) n
cross apply (
    select case when s.last_change_sequence_number > b.begins
                then s.last_change_sequence_number - b.begins else 0 end
           + case when n.number >= n.start then 0 else
               (select count_big(*) from changefeed.change x
                where x.feed_id = c.feed_id and x.shard = c.shard
                  and x.change_sequence_number > n.number
                  and x.change_sequence_number <= n.start
                  -- Or the server may not use the index of what has a number.
                  and x.change_sequence_number is not null) end as lag
    from (select max(v.number) as begins
          from (values (n.number), (n.start), (s.trimmed_to)) v(number)) b
) g
order by f.feed_id, c.name, c.shard
