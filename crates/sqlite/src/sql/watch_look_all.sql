-- For whom a take may find something: changes to be moved, or rows that nobody holds; and whether there are
-- rows at all, which may wait for a time to come.
select exists (select 1 from {log})
       or exists (select 1 from {leases} q
                   where q._changefeed_parked_time is null
                     and q._changefeed_lease_generation is null and q._changefeed_retry_time is null),
       exists (select 1 from {leases} q where q._changefeed_parked_time is null)
