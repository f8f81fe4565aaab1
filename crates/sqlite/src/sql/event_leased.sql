select count(*)
  from (select 1 from changefeed_event indexed by changefeed_event_leased
         where trigger_id = ?1 and lease_owner is not null
           and due_at > cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
         limit ?2)
