-- changefeed 6: cleaning up and trimming do not read all there is, on SQL Server 2017 and later, Azure SQL, and
-- Babelfish for PostgreSQL.
-- Older programs: running instances may continue; older versions can no longer start.

-- What is finished, by age. Delivery pays for this one, not the writer of the application.
-- Whoever has a long log makes it beforehand, with ONLINE = ON: this one keeps writers waiting.
if not exists (select 1 from sys.indexes i where i.object_id = object_id(N'changefeed.event') and i.name = N'ix_event_finished')
    create index ix_event_finished on changefeed.event (trigger_id, created_at) where state <> 'p';
GO

-- Until where a shard is old enough to be trimmed.
create index ix_progress_swept on changefeed.progress (feed_id, shard, swept_at)
    include (last_change_sequence_number);
GO
