-- Whether triggers fire for what triggers write, and the tables of event triggers whose schema
-- belongs to somebody else than ours.
select convert(int, (select convert(int, c.value_in_use) from sys.configurations c
                     where c.name = N'nested triggers')),
       (select top (1) schema_name(o.schema_id)
        from changefeed.event_trigger t
        join sys.objects o on o.object_id = t.table_id
        join sys.schemas s on s.schema_id = o.schema_id
        join sys.schemas ours on ours.name = N'changefeed'
        where t.dropped_at is null and isnull(o.principal_id, s.principal_id) <> ours.principal_id)
