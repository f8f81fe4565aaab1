-- The database triggers of an event trigger, and whether they fire.
select t.tgname::text, t.tgenabled in ('O', 'A')
from pg_trigger t
where t.tgrelid = $1 and not t.tgisinternal and t.tgname like $2
