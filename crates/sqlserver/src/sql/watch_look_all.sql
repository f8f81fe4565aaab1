-- For whom a take may find something: changes to be moved, or rows to be leased; and whether there are rows at
-- all, which may wait for a time to come. As in watch_look.sql nobody is waited for.
select {number} as place,
       convert(bit, case when {changes}
                           or exists (select 1 from changefeed.{leases} q with (readuncommitted)
                                      where q._changefeed_attempt_count = 0 and q._changefeed_parked_time is null)
                         then 1 else 0 end) as work,
       convert(bit, case when exists (select 1 from changefeed.{leases} q with (readuncommitted)
                                      where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null)
                         then 1 else 0 end) as waiting
