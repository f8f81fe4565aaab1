-- The database trigger of an event trigger: on which table, and whether it is switched off.
select t.parent_id, convert(bit, t.is_disabled)
from sys.triggers t
where t.name = @P1
