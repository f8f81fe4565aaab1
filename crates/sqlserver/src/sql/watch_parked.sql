select top ({limit}) {key}, convert(bigint, case when q._changefeed_operation >= 2 then 2 else q._changefeed_operation end),
       q._changefeed_change_version, convert(bigint, q._changefeed_attempt_count), q._changefeed_last_error,
       datediff_big(millisecond, q._changefeed_parked_time, sysutcdatetime())
from changefeed.{leases} q
where q._changefeed_parked_time is not null
order by q._changefeed_change_version
