-- All watches, with the table as it is called now.
select w.name, w.function_id, w.table_id, convert(nvarchar(128), schema_name(o.schema_id)),
       convert(nvarchar(128), o.name), w.definition
from changefeed.watch w
left join sys.objects o on o.object_id = w.table_id
order by w.name
