-- What there should be for a watch, and what is: whether the table is there, who notes its changes, our
-- tables, whether the trigger is there and on, what was missed of late, whether the table has
-- another owner than our schema, and how the database versions rows.
select convert(bit, case when o.object_id is null then 0 else 1 end), t.native,
       convert(bit, case when exists (select 1 from sys.objects l where l.schema_id = schema_id(N'changefeed')
                                        and l.name = concat(N'leases_', @P2, N'_', t.table_id)) then 1 else 0 end),
       convert(bit, case when exists (select 1 from sys.objects l where l.schema_id = schema_id(N'changefeed')
                                        and l.name = concat(N'changes_', t.table_id)) then 1 else 0 end),
       convert(bit, case when exists (select 1 from sys.objects l where l.schema_id = schema_id(N'changefeed')
                                        and l.name = N'global_state') then 1 else 0 end),
       case when t.missed_at > dateadd(day, -7, sysutcdatetime())
            then concat(convert(varchar(19), t.missed_at, 120), N' UTC: ', t.missed) end,
       convert(bit, case when exists (select 1 from sys.schemas s, sys.schemas c
                                      where s.schema_id = o.schema_id and c.name = N'changefeed'
                                        and isnull(o.principal_id, s.principal_id) <> c.principal_id) then 1 else 0 end),
       convert(bit, case when d.is_read_committed_snapshot_on = 1 or d.snapshot_isolation_state = 1
                         then 1 else 0 end),
       convert(nvarchar(128), d.name)
from changefeed.watched_table t
join sys.databases d on d.name = db_name()
left join sys.objects o on o.object_id = t.table_id
where t.table_id = @P1
