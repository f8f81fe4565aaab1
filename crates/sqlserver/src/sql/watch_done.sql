delete from changefeed.{leases} where {held} and _changefeed_newer_operation is null;
set @done = @@rowcount;
-- A newer change came while these were in process: they are handed over again.
update changefeed.{leases}
set _changefeed_change_version = @base + (select n.number from @newer n where n.version = _changefeed_change_version),
    _changefeed_operation = _changefeed_newer_operation,
    _changefeed_newer_operation = null,
    _changefeed_columns = _changefeed_newer_columns,
    _changefeed_newer_columns = null,
    _changefeed_attempt_count = 0,
    _changefeed_last_error = null,
    {unleased}
where {held};
set @done = @done + @@rowcount;
