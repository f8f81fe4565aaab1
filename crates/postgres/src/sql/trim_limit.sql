-- How far a shard may be trimmed: by age, by its consumers, who is the slowest of them, and what is so old that
-- nobody holds it back. Numbers below the start are as old as the backfill that gave them.
with limits as (
    select a.place, (
        select max(p.last_change_sequence_number)
        from changefeed.progress p
        where p.feed_id = $1 and p.shard = $2
          and p.swept_at <= clock_timestamp() - a.age * interval '1 second'
          and not exists (select from changefeed.backfill b
                          where b.feed_id = $1
                            and coalesce(b.finished_at, 'infinity')
                                > clock_timestamp() - a.age * interval '1 second')) as number
    from (values (1, $3::float8), (2, $4::float8)) a(place, age)
)
select (select l.number from limits l where l.place = 1), slowest.cursor, slowest.name,
       (select l.number from limits l where l.place = 2)
from (select) one
left join lateral (
    select c.cursor::bigint as cursor, c.name::text
    from changefeed.consumer c
    where c.feed_id = $1 and c.shard = $2
    order by 1, 2
    limit 1
) slowest on true
