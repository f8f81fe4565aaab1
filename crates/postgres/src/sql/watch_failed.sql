-- Attempts used up: parked, or, where a newer change came meanwhile, that one's turn.
update changefeed.{leases} q
set _changefeed_parked_time = case when q._changefeed_newer_operation is null
        then clock_timestamp() end,
    _changefeed_last_error = {error},
    {unleased}
    {newer_becomes_current}
where {held} and q._changefeed_attempt_count >= {attempts};
-- The others wait, held by us until their lease ends.
update changefeed.{leases} q
set _changefeed_last_error = {error},
    _changefeed_retry_time = (select changefeed.noted_time()) + {wait} * interval '1 millisecond'
where {held}
