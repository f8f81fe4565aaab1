-- What is due, the longest overdue first. A lease that ran out is due like anything else.
select change_id, tries, lease_owner
  from changefeed_event indexed by changefeed_event_due
 where trigger_id = ?1 and due_at is not null
   and due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
 order by due_at, change_id
 limit ?2
