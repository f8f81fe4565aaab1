-- All that were not dropped: number, definition, why it is paused, what its table is called now,
-- the table's number, the database trigger as it was made, whether the table was renamed, and
-- the feed.
select t.trigger_id, t.definition, t.paused_because, schema_name(o.schema_id), o.name,
       t.table_id, t.capture_sql,
       convert(bit, case when o.object_id is not null
                          and (o.name collate database_default <> t.table_name or schema_name(o.schema_id) <> t.schema_name)
                         then 1 else 0 end),
       t.feed_id, t.[columns]
from changefeed.event_trigger t
left join sys.objects o on o.object_id = t.table_id and o.type = 'U'
where t.dropped_at is null
order by t.name
