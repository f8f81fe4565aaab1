-- This row is spoken for. (With recursive triggers a REPLACE does fire the delete trigger.)
  delete from changefeed_event_staged where trigger_id = {id} and {staged_is_old};
