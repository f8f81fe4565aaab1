-- Attempts used up: parked, or, where a newer change came meanwhile, that one's turn. ?1 time, ?2
-- the error, ?3 the next version.
update {leases} as q
   set _changefeed_parked_time = case when q._changefeed_newer_operation is null then ?1 end,
       _changefeed_last_error = coalesce(?2, coalesce(q._changefeed_lease_owner, 'an instance')
                                             || ' did not report back: outcome unknown'),
       {unleased},
       _changefeed_change_version = case when q._changefeed_newer_operation is null
         then q._changefeed_change_version else ?3 end,
       _changefeed_attempt_count = case when q._changefeed_newer_operation is null
         then q._changefeed_attempt_count else 0 end,
       _changefeed_operation = case when q._changefeed_newer_operation is null
         then q._changefeed_operation
         when q._changefeed_operation in (1, 2)
         then case when q._changefeed_newer_operation >= 2 then 2 else 1 end
         else case when q._changefeed_newer_operation >= 2 then 3 else 0 end end,
       _changefeed_columns = case when q._changefeed_newer_operation is null
         then q._changefeed_columns else {own_and_newer} end,
       _changefeed_before = case when q._changefeed_newer_operation is null
         then q._changefeed_before else {own_and_newer_before} end,
       _changefeed_newer_before = null,
       _changefeed_newer_operation = null,
       _changefeed_newer_columns = null
 where {condition}
