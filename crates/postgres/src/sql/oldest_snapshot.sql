-- Who has the oldest snapshot of this database, and what could be done about it.
select h.who, h.advice
from (
    select age(a.backend_xmin) as age,
           format('session %s of %s (%s)', a.pid, coalesce(a.usename, 'the server'),
                  coalesce(nullif(a.application_name, ''), a.backend_type, '?')) as who,
           format('end it if it was forgotten: select pg_terminate_backend(%s)', a.pid) as advice
    from pg_stat_activity a
    where coalesce(a.datname, current_database()) = current_database()
      and a.pid <> pg_backend_pid()
    union all
    select age(s.xmin), format('the replication slot %s', s.slot_name),
           format('drop it if its standby is gone: select pg_drop_replication_slot(%L)',
                  s.slot_name)
    from pg_replication_slots s
) h
where h.age is not null
order by h.age desc
limit 1
