-- Strictly before: times are whole milliseconds, and a lease must not end before its time.
q._changefeed_parked_time is null
  and (q._changefeed_lease_generation is not null or q._changefeed_retry_time is not null)
  and case when q._changefeed_lease_generation is null then q._changefeed_retry_time <= ?1
           else q._changefeed_lease_expiration_time < ?1
                or q._changefeed_lease_owner = ?2 and q._changefeed_retry_time <= ?1 end
