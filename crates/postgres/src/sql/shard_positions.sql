-- Where the shards of these feeds stand: what a sweep, a backfill, the end of a backfill or another number of
-- shards moves. With $2 only
-- those of which sweeps announce nothing.
select d.feed_id, d.shard,
       pg_catalog.concat_ws('/', s.last_change_sequence_number, d.backfilled_to, b.finished_at, d.closed)
from changefeed.shard_definition d
join changefeed.shard s on s.feed_id = d.feed_id and s.shard = d.shard
left join changefeed.backfill b on b.feed_id = d.feed_id
where d.feed_id = any ($1) and (not $2 or not d.longpoll)
