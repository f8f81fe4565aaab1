-- From the first attempt on. An event that was captured before its trigger asked for an order goes
-- by itself.
update changefeed_event
   set state = 'p',
       due_at = cast((julianday('now') - 2440587.5) * 86400000.0 as integer),
       tries = 0, cut_off = 0, superseded_by = null, lease_owner = null, generation = generation + 1,
       order_key = coalesce(order_key,
         (select '' || changefeed_event.change_id from changefeed_event_trigger t
           where t.trigger_id = changefeed_event.trigger_id
             and json_extract(t.definition, '$.in_order') is not 0))
 where change_id = ?1
