-- What kind of server and database this is, what the clock says there, and what this user may do;
-- null where the server does not say. Works before anything of ours is installed.
select convert(nvarchar(128), serverproperty('ProductVersion')),
       convert(int, serverproperty('EngineEdition')),
       convert(int, d.compatibility_level),
       convert(int, d.is_read_committed_snapshot_on),
       convert(int, d.snapshot_isolation_state),
       convert(int, case when exists (select 1 from sys.change_tracking_databases c
                                      where c.database_id = db_id()) then 1 else 0 end),
       convert(nvarchar(128), db_name()),
       convert(nvarchar(128), user_name()),
       datediff_big(millisecond, convert(datetime2(3), '1970-01-01'), sysutcdatetime()),
       convert(int, d.delayed_durability) --@sqlserver
       --@babelfish 0
from sys.databases d
where d.name = db_name()
