insert into changefeed_instance (name, roles, address, version, tallies, started_at, seen_at)
select ?1, ?2, ?3, ?4, ?5, now.ms, now.ms
  from (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) as ms) now
 where true
on conflict (name) do update
   set roles = excluded.roles, address = excluded.address, version = excluded.version,
       tallies = excluded.tallies, seen_at = excluded.seen_at
