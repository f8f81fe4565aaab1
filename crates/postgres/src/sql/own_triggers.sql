-- Triggers on the application's tables that call functions of ours. Clones on partitions go
-- with their parent.
select t.tgname::text, t.tgrelid::regclass::text
from pg_trigger t
join pg_proc p on p.oid = t.tgfoid
join pg_namespace pn on pn.oid = p.pronamespace
join pg_class c on c.oid = t.tgrelid
join pg_namespace cn on cn.oid = c.relnamespace
where pn.nspname = 'changefeed' and cn.nspname <> 'changefeed' and t.tgparentid = 0
