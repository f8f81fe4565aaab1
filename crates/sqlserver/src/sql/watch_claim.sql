update changefeed.{leases}
set _changefeed_last_error = case
        when _changefeed_lease_expiration_time <= @now and _changefeed_retry_time is null
        then concat(_changefeed_lease_owner, N' did not report back: outcome unknown')
        else _changefeed_last_error end,
    _changefeed_lease_expiration_time = dateadd(millisecond, {milliseconds}, dateadd(second, {seconds}, @now)),
    _changefeed_lease_owner = {owner},
    _changefeed_lease_generation = @generation,
    _changefeed_attempt_count = _changefeed_attempt_count + 1,
    _changefeed_bits = case when _changefeed_bits_version = _changefeed_change_version then _changefeed_bits
        else convert(bigint, convert(binary(8), substring(convert(binary(16), newid()), 9, 8))) end,
    _changefeed_bits_version = _changefeed_change_version,
    _changefeed_retry_time = null
where _changefeed_attempt_count {tried} 0 and _changefeed_parked_time is null
  and exists (select 1 from @due d where d.version = changefeed.{leases}._changefeed_change_version);
