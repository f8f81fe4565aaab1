-- Where the server notes the changes: whether it still does, whether the user may see that, whether its
-- changes can be read in a snapshot, and whether it retains all that nobody has moved yet.
select convert(bit, case when exists (select 1 from sys.change_tracking_tables c where c.object_id = t.table_id)
                         then 1 else 0 end),
       convert(bit, case when change_tracking_min_valid_version(t.table_id) is null then 0 else 1 end),
       convert(bit, case when d.snapshot_isolation_state = 1 then 1 else 0 end),
       convert(bit, case when t.tracked_version < change_tracking_min_valid_version(t.table_id)
                           or t.tracked_version > change_tracking_current_version() then 1 else 0 end)
from changefeed.watched_table t
join sys.databases d on d.name = db_name()
where t.table_id = @P1
