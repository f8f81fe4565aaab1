insert into changefeed_watch
    (name, function_id, table_id, definition, columns, max_changes_per_worker, before, created_at)
values (?1, ?2, ?3, ?4, ?5, coalesce(?6, 1000), ?7, {now})
on conflict (name) do update
set definition = coalesce(excluded.definition, definition),
    columns = excluded.columns,
    before = excluded.before,
    max_changes_per_worker = coalesce(?6, max_changes_per_worker)
