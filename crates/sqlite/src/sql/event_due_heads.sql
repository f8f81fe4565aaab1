-- Of the first that are due, those that are the first unfinished of their key.
select e.change_id, e.tries, e.lease_owner
  from (select change_id, order_key, tries, lease_owner
          from changefeed_event indexed by changefeed_event_due
         where trigger_id = ?1 and due_at is not null
           and due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
         order by due_at, change_id
         limit ?3) e
 where e.order_key is null
    or not exists (select 1 from changefeed_event f indexed by changefeed_event_order
                    where f.trigger_id = ?1 and f.state = 'p' and f.order_key = e.order_key
                      and f.order_key is not null and f.change_id < e.change_id)
 limit ?2
