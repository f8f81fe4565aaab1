-- Whether triggers fire for what triggers write, the tables of event triggers whose schema belongs to
-- somebody else than ours, and columns of theirs that not everybody may read.
select convert(int, (select convert(int, c.value_in_use) from sys.configurations c
                     where c.name = N'nested triggers')),
       (select top (1) schema_name(o.schema_id)
        from changefeed.event_trigger t
        join sys.objects o on o.object_id = t.table_id
        join sys.schemas s on s.schema_id = o.schema_id
        join sys.schemas ours on ours.name = N'changefeed'
        where t.dropped_at is null and isnull(o.principal_id, s.principal_id) <> ours.principal_id)
       , (select top (1) concat(object_schema_name(c.object_id), N'.', object_name(c.object_id), N'.', c.name) --@sqlserver
          from changefeed.event_trigger t join sys.columns c on c.object_id = t.table_id --@sqlserver
          where t.dropped_at is null and c.is_masked = 1 order by c.object_id, c.column_id) --@sqlserver
       --@babelfish , convert(nvarchar(400), null)
