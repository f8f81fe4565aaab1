select name, owner, generation,
       expires_at - cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
  from changefeed_lease
 where owner is not null
 order by name
