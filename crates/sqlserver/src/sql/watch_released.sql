update changefeed.{leases}
set _changefeed_attempt_count = case when _changefeed_attempt_count > 0 then _changefeed_attempt_count - 1 else 0 end,
    {unleased}
where {held};
set @done = @@rowcount;
