-- The batches that an owner holds, without their rows. Rows of a batch that failed are not in process:
-- they wait for their next attempt.
select q._changefeed_lease_generation, min(q._changefeed_change_version),
       max(q._changefeed_change_version), max(q._changefeed_attempt_count)
from {leases} q
where q._changefeed_parked_time is null and q._changefeed_lease_generation is not null
  and q._changefeed_retry_time is null and q._changefeed_lease_owner = ?1
group by q._changefeed_lease_generation
