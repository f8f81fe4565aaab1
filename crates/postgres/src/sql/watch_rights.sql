-- The grants that the database user lacks to work on a watch of a table, $1.
with tables as (
    select c.oid, c.relname::text as name,
           case when c.relname ~ '^changes_' then array['select', 'delete']
                else array['select', 'insert', 'update', 'delete'] end as rights
    from pg_class c
    where c.relnamespace = 'changefeed'::regnamespace and c.relkind = 'r'
      and (c.relname in ('watch', 'watched_table', 'global_state', 'changes_' || $1)
           or c.relname ~ ('^leases_[0-9a-f]{16}_' || $1 || '$'))
),
functions as (
    select p.oid, p.proname::text as name
    from pg_proc p
    where p.pronamespace = 'changefeed'::regnamespace
      and (p.proname in ('watch_count', 'table_signature', 'columns_now', 'readable',
                         'safe_columns', 'safe_value', 'base_type', 'hold_table', 'same_row')
           -- These are for the trigger, which runs with the rights of whoever makes it.
           or p.proname in ('row_key', 'key_query', 'key_now')
              and not exists (select from pg_proc t
                              where t.pronamespace = 'changefeed'::regnamespace
                                and t.proname = 'track_' || $1
                                and t.proowner <> current_user::regrole))
)
select format('%s to %s', g.missing, quote_ident(current_user))
from (
    select 1 as kind, t.name,
           format('grant %s on changefeed.%I', string_agg(r, ', '), t.name) as missing
    from tables t cross join lateral unnest(t.rights) r
    where not has_table_privilege(t.oid, r)
    group by t.name
    union all
    select 2, c.relname::text, format('grant usage on sequence changefeed.%I', c.relname)
    from pg_class c
    where c.relnamespace = 'changefeed'::regnamespace
      and c.relname in ('change_version', 'lease_generation')
      and not has_sequence_privilege(c.oid, 'usage')
    union all
    select 3, f.name, format('grant execute on function changefeed.%I', f.name)
    from functions f
    where not has_function_privilege(f.oid, 'execute')
) g
order by g.kind, g.name
