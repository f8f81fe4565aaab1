-- Stops a shard; without a generation ($4) its position is given up as well, so that retention goes on.
with stopped as (
    update changefeed.subscription_shard s set stopped = $3::text
    where s.name = $1 and s.shard = $2 and s.generation = coalesce($4::bigint, s.generation)
    returning s.name, s.shard
), given_up as (
    delete from changefeed.consumer c using stopped s
    where $4::bigint is null and c.name = s.name and c.feed_id = $5::smallint and c.shard = s.shard
)
select count(*) from stopped
