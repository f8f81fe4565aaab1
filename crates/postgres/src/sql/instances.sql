select name, roles, address, version,
       (extract(epoch from clock_timestamp() - started_at) * 1000)::bigint as up_ms,
       (extract(epoch from clock_timestamp() - seen_at) * 1000)::bigint as seen_ms,
       tallies
from changefeed.instance
order by name
