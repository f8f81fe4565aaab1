-- Schema, table and kind, and for each column its name, the system type beneath, length in bytes,
-- precision, scale, number, whether it is nullable, place in the primary key, and its collation where
-- that is not the database's; last the owner of the table, if that is not the owner of our schema, and the
-- latter. Who they are may be nothing for this user to see, but not whether they are one.
select convert(nvarchar(128), schema_name(o.schema_id)), convert(nvarchar(128), o.name),
       convert(nvarchar(2), o.type), convert(nvarchar(128), c.name),
       convert(nvarchar(128), coalesce(b.name, u.name)),
       convert(int, c.max_length), convert(int, c.precision), convert(int, c.scale),
       convert(int, c.column_id), convert(bit, c.is_nullable), convert(int, k.key_ordinal),
       case when c.collation_name <> convert(nvarchar(128), databasepropertyex(db_name(), 'Collation'))
            then convert(nvarchar(128), c.collation_name) end
       , case when isnull(o.principal_id, s.principal_id) <> ours.principal_id --@sqlserver
              then convert(nvarchar(128), isnull(user_name(isnull(o.principal_id, s.principal_id)), N'?')) end --@sqlserver
       , convert(nvarchar(128), isnull(user_name(ours.principal_id), N'?')) --@sqlserver
       -- Ownership means nothing to triggers there: they run with the rights of the writer.
       --@babelfish , convert(nvarchar(128), null), convert(nvarchar(128), null)
from sys.objects o
join sys.schemas s on s.schema_id = o.schema_id --@sqlserver
left join sys.schemas ours on ours.name = N'changefeed' --@sqlserver
join sys.columns c on c.object_id = o.object_id
left join sys.types u on u.user_type_id = c.user_type_id
-- Types of somebody's own stand for one of the system's; types that are programs share a number.
-- A vector says that it is bytes, and cannot be read as such.
left join sys.types b on b.user_type_id = c.system_type_id and c.system_type_id <> 240
    and c.user_type_id <> 255 --@sqlserver
left join sys.indexes x on x.object_id = o.object_id and x.is_primary_key = 1
left join sys.index_columns k on k.object_id = o.object_id and k.index_id = x.index_id
    and k.column_id = c.column_id and k.key_ordinal > 0
where o.object_id = @P1 and o.type in ('U', 'V')
order by c.column_id
