-- The keys whose first event is due, with the last event of each that was never tried, where there are several. What a
-- person has sent takes no part.
select e.order_key, max(e.change_id)
  from changefeed_event e indexed by changefeed_event_order
 where e.trigger_id = ?1 and e.state = 'p' and e.generation = 0 and e.op <> 'M'
   and e.order_key in (select d.order_key from changefeed_event d indexed by changefeed_event_due
                        where d.trigger_id = ?1 and d.due_at is not null
                          and d.due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer)
                          and d.generation = 0 and d.op <> 'M'
                        order by d.due_at, d.change_id
                        limit ?2)
 group by e.order_key
having count(*) > 1
