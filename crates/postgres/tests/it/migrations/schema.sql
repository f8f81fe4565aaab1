-- What is in the schema changefeed, one line each, in words that do not depend on the version of the server. The bodies
-- of functions and views are left out: the migrations have them.
select regexp_replace(line, '\s+', ' ', 'g') from (
  select 1 as part, c.relname || '.' || a.attnum::text as place,
         case c.relkind when 'v' then 'view ' when 'S' then 'sequence ' else 'table ' end || c.relname || ': ' || a.attname
         || ' ' || format_type(a.atttypid, a.atttypmod)
         || case when a.attnotnull then ' not null' else '' end
         || case a.attidentity when '' then '' else ' identity' end
         || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') as line,
         c.relname as name, a.attnum as number
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
   where c.relnamespace = 'changefeed'::regnamespace and c.relkind in ('r', 'v', 'p')
  union all
  select 2, '', 'sequence ' || sequencename || ': start ' || start_value || ', cache ' || cache_size, sequencename, 0
    from pg_sequences where schemaname = 'changefeed'
  union all
  select 3, '', 'constraint of ' || conrelid::regclass || ': ' || pg_get_constraintdef(oid), conrelid::regclass::text, 0
    from pg_constraint where connamespace = 'changefeed'::regnamespace and contype in ('c', 'f', 'p', 'u')
  union all
  select 4, '', indexdef, tablename, 0 from pg_indexes where schemaname = 'changefeed'
  union all
  select 5, '', pg_get_triggerdef(t.oid), t.tgname, 0
    from pg_trigger t join pg_class c on c.oid = t.tgrelid
   where c.relnamespace = 'changefeed'::regnamespace and not t.tgisinternal
  union all
  select 6, '', case p.prokind when 'p' then 'procedure ' else 'function ' end || p.proname
         -- PostgreSQL 13 does not say IN.
         || '(' || regexp_replace(pg_get_function_arguments(p.oid), '(^|, )IN ', '\1', 'g') || ')'
         || coalesce(' returns ' || pg_get_function_result(p.oid), '') || ' language ' || l.lanname
         || case p.provolatile when 'i' then ' immutable' when 's' then ' stable' else '' end
         || case when p.prosecdef then ' security definer' else '' end
         || coalesce(' set ' || array_to_string(p.proconfig, '; '), ''), p.proname, 0
    from pg_proc p join pg_language l on l.oid = p.prolang
   where p.pronamespace = 'changefeed'::regnamespace
) all_of_it
order by part, name collate "C", number, line collate "C"
