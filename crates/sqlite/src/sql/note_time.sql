update changefeed_clock
   set latest = cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
 where latest < cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - 15000
