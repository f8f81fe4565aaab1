-- The database trigger of an event trigger: on which table, whether it is switched off, and whether
-- it may be there and this user may not see it.
select t.parent_id, convert(bit, isnull(t.is_disabled, 0)),
       convert(bit, case when t.object_id is not null then 0
                         when has_perms_by_name(concat(quotename(schema_name(o.schema_id)), N'.', quotename(o.name)), N'OBJECT', N'VIEW DEFINITION') = 0
                          and has_perms_by_name(concat(quotename(schema_name(o.schema_id)), N'.', quotename(o.name)), N'OBJECT', N'ALTER') = 0 then 1
                         else 0 end)
from sys.objects o
left join sys.triggers t on t.name = @P2
where o.object_id = @P1
