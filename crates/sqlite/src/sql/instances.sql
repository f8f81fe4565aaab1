select i.name, i.roles, i.address, i.version, now.ms - i.started_at as up_ms,
       now.ms - i.seen_at as seen_ms, i.tallies
  from changefeed_instance i,
       (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) as ms) now
 order by i.name
