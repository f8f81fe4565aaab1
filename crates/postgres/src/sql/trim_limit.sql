-- How far a shard may be trimmed: by age, by its consumers, and who is the slowest of them.
-- Numbers below the start are as old as the backfill that gave them.
select (select max(p.last_change_sequence_number)
        from changefeed.progress p
        where p.feed_id = $1 and p.shard = $2
          and p.swept_at <= clock_timestamp() - $3 * interval '1 second'
          and not exists (select from changefeed.backfill b
                          where b.feed_id = $1
                            and coalesce(b.finished_at, 'infinity')
                                > clock_timestamp() - $3 * interval '1 second')),
       slowest.cursor, slowest.name
from (select) one
left join lateral (
    select c.cursor::bigint as cursor, c.name::text
    from changefeed.consumer c
    where c.feed_id = $1 and c.shard = $2
    order by 1, 2
    limit 1
) slowest on true
