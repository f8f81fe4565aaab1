update {leases}
   set _changefeed_lease_expiration_time = _changefeed_lease_expiration_time
         - iif(_changefeed_lease_expiration_time > ?1 + ?2 / 2, ?2, 0),
       _changefeed_retry_time = _changefeed_retry_time
         - iif(_changefeed_retry_time > ?1 + ?2 / 2, ?2, 0)
 where _changefeed_lease_expiration_time > ?1 + ?2 / 2 or _changefeed_retry_time > ?1 + ?2 / 2
