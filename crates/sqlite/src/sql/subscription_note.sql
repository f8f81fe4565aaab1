-- Notes since when the sink of a shard takes nothing, and why; or that it does.
update changefeed_subscription_shard
set failure = ?4,
    failing_since = case when ?4 is not null
                    then coalesce(failing_since, cast((julianday('now') - 2440587.5) * 86400000.0 as integer)) end
where name = ?1 and shard = ?2 and generation = ?3
