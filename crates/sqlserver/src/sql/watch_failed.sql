-- Attempts used up: parked, or, where a newer change came meanwhile, that one's turn.
update changefeed.{leases}
set _changefeed_parked_time = case when _changefeed_newer_operation is null then @now end,
    _changefeed_last_error = {error},
    {newer_becomes_current},
    {unleased}
where {held} and _changefeed_attempt_count >= {attempts};
set @parked = @@rowcount;
-- The others wait, held by us until their lease ends.
update changefeed.{leases}
set _changefeed_last_error = {error},
    _changefeed_retry_time = dateadd(millisecond, {milliseconds}, dateadd(second, {seconds}, @now))
where {held};
set @done = @parked + @@rowcount;
