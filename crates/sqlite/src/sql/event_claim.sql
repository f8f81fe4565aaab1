-- The attempt is counted now: whoever dies after this has made it.
update changefeed_event
   set due_at = cast((julianday('now') - 2440587.5) * 86400000.0 as integer) + ?3,
       cut_off = cut_off + (lease_owner is not null),
       lease_owner = ?2,
       generation = generation + 1,
       tries = tries + 1
 where change_id = ?1
returning op, old, new, session_variables, trace_context,
          strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') as created_at,
          generation, tries, cut_off, bits
