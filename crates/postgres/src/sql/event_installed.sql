-- The database triggers of an event trigger, whether they fire, and on how many tables: a
-- statement trigger has to be on each partition.
select t.tgname::text, bool_and(t.tgenabled in ('O', 'A')), count(*)
from (select $1::oid as relid union select p.relid from pg_partition_tree($1::oid) p) p
join pg_trigger t on t.tgrelid = p.relid and t.tgname like $2
group by t.tgname
