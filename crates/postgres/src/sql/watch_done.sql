delete from changefeed.{leases} q
where {held} and q._changefeed_newer_operation is null;
-- A newer change came while these were in process: they are handed over again.
update changefeed.{leases} q
set _changefeed_change_version = nextval('changefeed.change_version'),
    _changefeed_operation = q._changefeed_newer_operation,
    _changefeed_newer_operation = null,
    _changefeed_columns = q._changefeed_newer_columns,
    _changefeed_newer_columns = null,
    _changefeed_before = q._changefeed_newer_before,
    _changefeed_newer_before = null,
    _changefeed_attempt_count = 0,
    _changefeed_last_error = null,
    {unleased}
where {held}
