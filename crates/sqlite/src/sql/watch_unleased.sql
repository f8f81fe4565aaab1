_changefeed_lease_owner = null, _changefeed_lease_generation = null,
       _changefeed_lease_expiration_time = null, _changefeed_retry_time = null
