-- This row is spoken for. (With recursive triggers a REPLACE does fire the delete trigger.)
  delete from changefeed_staged where feed_id = {feed} and {staged_is_old};
