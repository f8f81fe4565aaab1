-- Takes a lease that is free or expired, or renews that of the same owner. No row comes back
-- while somebody else holds it. The generation grows with every change of owner. ?4 is a renewal
-- that has lasted for longer than it may: the clock was set back, and its owner is dead. The time
-- is cut to milliseconds, by up to two: they are added, so that a lease never ends while its owner
-- still counts on it.
insert into changefeed_lease as l (name, owner, generation, ttl, expires_at)
values (?1, ?2, 1, ?3, cast((julianday('now') - 2440587.5) * 86400000.0 as integer) + ?3 + 2)
on conflict (name) do update
   set generation = l.generation + (l.owner is not excluded.owner),
       owner = excluded.owner,
       renewal = l.renewal + 1,
       ttl = excluded.ttl,
       expires_at = excluded.expires_at
 where l.owner is null or l.owner = excluded.owner
    or l.expires_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
    or l.renewal = ?4
returning generation
