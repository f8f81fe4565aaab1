-- Database triggers of ours that belong to nothing any more: their schema, their name, and their table.
select convert(nvarchar(128), schema_name(p.schema_id)), convert(nvarchar(128), t.name), convert(nvarchar(128), p.name)
from sys.triggers t
join sys.objects p on p.object_id = t.parent_id
where left(t.name, 11) = N'changefeed_' and schema_name(p.schema_id) <> N'changefeed'
  and not exists (select 1 from changefeed.feed f where t.name = concat(N'changefeed_', f.feed_id))
  and not exists (select 1 from changefeed.event_trigger e
                  where e.dropped_at is null and t.name = concat(N'changefeed_event_', e.trigger_id))
  and not exists (select 1 from changefeed.watched_table w where t.name = concat(N'changefeed_watch_', w.table_id))
order by 1, 2
