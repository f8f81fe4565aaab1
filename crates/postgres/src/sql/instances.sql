select name, roles, address, version,
       (extract(epoch from clock_timestamp() - started_at) * 1000)::bigint,
       (extract(epoch from clock_timestamp() - seen_at) * 1000)::bigint,
       tallies
from changefeed.instance
order by name
