select textsend((select row_to_json(changefeed_key.*)::text from (select {key}) changefeed_key)),
       least(q._changefeed_operation, 2)::bigint, q._changefeed_change_version,
       q._changefeed_attempt_count::bigint, q._changefeed_last_error,
       (extract(epoch from clock_timestamp() - q._changefeed_parked_time) * 1000)::bigint
from {leases} q
where q._changefeed_parked_time is not null
order by q._changefeed_change_version
limit {limit}
