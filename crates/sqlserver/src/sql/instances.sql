select i.name, i.roles, i.address, i.version,
       datediff_big(millisecond, i.started_at, sysutcdatetime()),
       datediff_big(millisecond, i.seen_at, sysutcdatetime()),
       i.tallies
from changefeed.instance i
order by i.name
