-- The schema of a trigger of that name, and its table; or whether one may be there that this user may not
-- see. Whoever may alter a table sees its triggers.
select convert(nvarchar(128), schema_name(o.schema_id)), convert(bit, 0), convert(nvarchar(128), object_name(t.parent_id))
from sys.triggers t
join sys.objects o on o.object_id = t.object_id
where t.name = @P2
union all
select null, convert(bit, 1), null
where not exists (select 1 from sys.triggers t where t.name = @P2)
  --@babelfish and user_name() <> N'dbo'
  and has_perms_by_name(null, N'DATABASE', N'VIEW DEFINITION') = 0 --@sqlserver
  and not exists (select 1 from sys.objects o where o.object_id = @P1
                  and (has_perms_by_name(concat(quotename(schema_name(o.schema_id)), N'.', quotename(o.name)), N'OBJECT', N'VIEW DEFINITION') = 1
                       or has_perms_by_name(concat(quotename(schema_name(o.schema_id)), N'.', quotename(o.name)), N'OBJECT', N'ALTER') = 1))
