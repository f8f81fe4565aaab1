-- Whether there is anything to do: changes to be moved, rows that nobody holds, rows to be tried
-- again; and whether it is time to say that somebody is at work. ?1 is the time, ?2 who asks.
select exists (select 1 from {log}),
       exists (select 1 from {leases} q
                where q._changefeed_parked_time is null
                  and q._changefeed_lease_generation is null and q._changefeed_retry_time is null),
       exists (select 1 from {leases} q where {due}),
       coalesce((select s.last_access_time from changefeed_global_state s
                  where s.function_id = ?3 and s.table_id = ?4), 0) < ?1 - {idle}
