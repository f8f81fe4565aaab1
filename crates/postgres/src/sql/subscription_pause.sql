-- Pauses for a reason, or resumes: then shards that were stopped are tried again.
with paused as (
    update changefeed.subscription s set paused = $2::text where s.name = $1 returning s.name
), resumed as (
    update changefeed.subscription_shard l set stopped = null
    from paused p where $2::text is null and l.name = p.name
)
select count(*) from paused
