-- ?1 time, ?2 owner, ?3 milliseconds, ?4 generation, ?5 limit.
update {leases} as q
   set _changefeed_last_error = case
         when q._changefeed_lease_expiration_time < ?1 and q._changefeed_retry_time is null
         then q._changefeed_lease_owner || ' did not report back: outcome unknown'
         else q._changefeed_last_error end,
       _changefeed_lease_expiration_time = ?1 + ?3,
       _changefeed_lease_owner = ?2,
       _changefeed_lease_generation = ?4,
       _changefeed_attempt_count = q._changefeed_attempt_count + 1,
       _changefeed_bits = case when q._changefeed_bits_version = q._changefeed_change_version
         then q._changefeed_bits else random() end,
       _changefeed_bits_version = q._changefeed_change_version,
       _changefeed_retry_time = null
 where q.{rowid} in (select q.{rowid} from {leases} q where {condition}
                    order by q._changefeed_change_version limit ?5)
returning _changefeed_change_version, _changefeed_attempt_count
