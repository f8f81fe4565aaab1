-- What lies ahead only because the clock was set back by ?2 to ?1. What is held since then is held
-- for less than half of that; what nobody holds was due before.
update changefeed_event
   set due_at = due_at - ?2
 where trigger_id in (select trigger_id from changefeed_event_trigger)
   and due_at > ?1 and (lease_owner is null or due_at > ?1 + ?2 / 2)
