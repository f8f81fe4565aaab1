batch as materialized (
    select nextval('changefeed.lease_generation') as generation, t.now,
           t.now + {lease} * interval '1 millisecond' as until,
           -- Chance is dear: it is drawn once, and spread over the rows by their versions.
           uuid_hash_extended(gen_random_uuid(), 0) as chance
    from (select changefeed.noted_time() as now offset 0) t
),
leased as (
    update changefeed.{leases} q
    set _changefeed_lease_expiration_time = b.until,
        _changefeed_lease_owner = {owner},
        _changefeed_lease_generation = b.generation,
        _changefeed_attempt_count = q._changefeed_attempt_count + 1,
        _changefeed_bits = case when q._changefeed_bits_version = q._changefeed_change_version
            then q._changefeed_bits
            else hashint8extended(q._changefeed_change_version, b.chance) end,
        _changefeed_bits_version = q._changefeed_change_version,
        _changefeed_last_error = case
            when q._changefeed_lease_expiration_time <= b.now
                 and q._changefeed_retry_time is null
            then q._changefeed_lease_owner || ' did not report back: outcome unknown'
            else q._changefeed_last_error end,
        _changefeed_retry_time = null
    from batch b
    where q.ctid = any(array(select c.place from chosen c))
    returning q._changefeed_lease_generation as generation,
              q._changefeed_change_version as version, q._changefeed_attempt_count as attempt
)
select max(l.generation), min(l.version), max(l.version), max(l.attempt), count(*) from leased l
