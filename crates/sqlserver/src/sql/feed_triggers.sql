-- The feeds that capture a table, and their database triggers as they are: text, and whether they
-- are switched off, and whether this user may see them. No text where there is no such trigger on the
-- table.
select f.feed_id, f.name, s.table_id, s.shard_by, s.shards,
       convert(nvarchar(max), m.definition), convert(bit, isnull(t.is_disabled, 0)),
       convert(bit, case when m.definition is not null then 1
                         when t.object_id is not null then 0
                         when has_perms_by_name(concat(quotename(schema_name(o.schema_id)), N'.', quotename(o.name)), N'OBJECT', N'VIEW DEFINITION') = 0
                          and has_perms_by_name(concat(quotename(schema_name(o.schema_id)), N'.', quotename(o.name)), N'OBJECT', N'ALTER') = 0 then 0
                         else 1 end),
       s.images, convert(nvarchar(200), s.key_columns), s.condition, s.columns, s.first_shard
from changefeed.feed f
join changefeed.feed_source s on s.feed_id = f.feed_id and s.kind = 'captured'
left join sys.objects o on o.object_id = s.table_id
left join sys.triggers t on t.parent_id = s.table_id and t.name = concat(N'changefeed_', f.feed_id)
left join sys.sql_modules m on m.object_id = t.object_id
order by f.feed_id
