-- Leases new changes, oldest first.
with chosen as materialized (
    select q.ctid as place
    from changefeed.{leases} q
    where {all_moved} and q._changefeed_change_version > {floor} and q._changefeed_parked_time is null
      and q._changefeed_lease_generation is null and q._changefeed_retry_time is null
    order by q._changefeed_change_version
    limit {batch}
),
{lease_chosen}
