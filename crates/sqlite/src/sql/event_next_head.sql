-- The first unfinished event of the next key after that of another event, and whether it is due.
select change_id, tries, lease_owner,
       due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
  from changefeed_event indexed by changefeed_event_order
 where trigger_id = ?1 and state = 'p' and order_key is not null
   and order_key > coalesce((select order_key from changefeed_event where change_id = ?2), '')
 order by order_key, change_id
 limit 1
