select i.name, i.roles, i.address, i.version,
       datediff_big(millisecond, i.started_at, sysutcdatetime()) as up_ms,
       datediff_big(millisecond, i.seen_at, sysutcdatetime()) as seen_ms,
       i.tallies
from changefeed.instance i
order by i.name
