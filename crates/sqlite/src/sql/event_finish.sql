-- An attempt whose end nobody knows is not one that failed.
update changefeed_event
   set state = ?3,
       due_at = cast((julianday('now') - 2440587.5) * 86400000.0 as integer) + ?4,
       cut_off = cut_off + ?5,
       lease_owner = null
 where change_id = ?1 and generation = ?2 and lease_owner is not null
