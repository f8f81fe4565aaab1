-- Events that were captured at a time that is still to come (?1 is now): the clock was set forward, and
-- back again before anybody has looked.
-- Differs: a reader holds up nobody here, so all that is to come is looked at.
select change_id
  from changefeed_event indexed by changefeed_event_due
 where trigger_id in (select trigger_id from changefeed_event_trigger)
   and due_at > ?1 + 5000 and generation = 0 and created_at > ?1 + 5000
 limit 20000
