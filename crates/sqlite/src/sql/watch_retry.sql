-- Differs: one writer, so nothing is locked.
update {leases} set _changefeed_parked_time = null, _changefeed_attempt_count = 0,
       _changefeed_change_version = (select version from changefeed_watch_counter) + newer.number
  from (select q._changefeed_change_version as version,
               row_number() over (order by q._changefeed_change_version) as number
          from {leases} q
         where q._changefeed_parked_time is not null
           and (?1 is null or q._changefeed_change_version = ?1)) newer
 where _changefeed_parked_time is not null and _changefeed_change_version = newer.version
