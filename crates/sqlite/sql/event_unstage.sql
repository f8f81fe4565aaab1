-- This row is spoken for, if it is still the same: with recursive triggers a REPLACE does fire the
-- delete trigger, and an upsert becomes an update.
  delete from changefeed_event_staged
   where trigger_id = {id} and {staged_is_old} and old is {old};
