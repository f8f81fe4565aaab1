-- Sweeps, unless the snapshot is the one before a sweep that found nothing: then nothing has been committed
-- since, and looking costs nearly nothing. The condition has no column in it, so it is decided before the
-- function is called. One row at least, with the snapshot of this look and a time before it.
select pg_current_snapshot()::text, statement_timestamp(), s.feed_id, s.shard, s.change_count, s.lag_milliseconds
from (values (1)) one (row)
left join lateral (
    select s.feed_id, s.shard, s.change_count, s.lag_milliseconds
    from changefeed.sweep($1, $3) s
    where pg_current_snapshot()::text is distinct from $2
) s on true
