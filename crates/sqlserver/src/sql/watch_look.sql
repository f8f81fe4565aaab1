-- Whether there is anything to do: changes to be moved, or rows to be leased. What a writer has not
-- committed yet is passed by; what another worker has not, costs a look more, and nobody waits for it.
select convert(bit, case when {changes} then 1 else 0 end),
       convert(bit, case when exists (select 1 from changefeed.{leases} q with (readuncommitted)
                                      where q._changefeed_attempt_count = 0 and q._changefeed_parked_time is null)
                           or exists (select 1 from changefeed.{leases} q with (readuncommitted)
                                      where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null
                                        and (q._changefeed_lease_generation is null
                                             or q._changefeed_lease_expiration_time <= sysutcdatetime()
                                             or (q._changefeed_lease_owner = {owner}
                                                 and q._changefeed_retry_time <= sysutcdatetime())))
                         then 1 else 0 end)
