-- What the database user lacks to work on a watch of a table, $1; nothing of it is missing where
-- grant_worker() was called.
with tables as (
    select c.oid, c.relname::text as name,
           case when c.relname in ('watch', 'watched_table') then array['select']
                when c.relname = 'global_state' then array['select', 'insert', 'update']
                when c.relname ~ '^changes_' then array['select', 'delete']
                else array['select', 'insert', 'update', 'delete'] end as rights
    from pg_class c
    where c.relnamespace = 'changefeed'::regnamespace and c.relkind = 'r'
      and (c.relname in ('watch', 'watched_table', 'global_state', 'changes_' || $1)
           or c.relname ~ ('^leases_[0-9a-f]{16}_' || $1 || '$'))
)
select format('%s on %s', r, t.name)
from tables t cross join lateral unnest(t.rights) r
where not has_table_privilege(t.oid, r)
union all
select 'update on watch'
where not has_column_privilege('changefeed.watch', 'loading', 'update')
   or not has_column_privilege('changefeed.watch', 'loaded_to', 'update')
union all
select format('usage on %s', c.relname)
from pg_class c
where c.relnamespace = 'changefeed'::regnamespace
  and c.relname in ('change_version', 'lease_generation')
  and not has_sequence_privilege(c.oid, 'usage')
union all
select format('execute on %s', p.proname)
from pg_proc p
where p.pronamespace = 'changefeed'::regnamespace
  and p.proname in ('watch_count', 'table_signature', 'readable', 'page_columns',
                    'safe_value', 'base_type', 'hold_table', 'unreadable', 'same_row', 'noted_time',
                    'keep_time', 'few_images')
  and not has_function_privilege(p.oid, 'execute')
