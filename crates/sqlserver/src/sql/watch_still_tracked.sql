-- Whether the server still notes the changes of the table, and whether it has done so all the time: one
-- that was switched off and on again, or whose table was truncated, may say the same versions as before.
if change_tracking_min_valid_version({table_id}) is null
    throw 55701, 'changefeed: change tracking of the table was switched off, or the user may not see it', 1;
select convert(bit, case when t.tracked_in <> {tracked_in} then 0 else 1 end)
from changefeed.watched_table t where t.table_id = {table_id}
