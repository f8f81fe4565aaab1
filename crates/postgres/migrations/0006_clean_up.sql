-- changefeed 6: cleaning up does not read the whole log, on PostgreSQL.
-- Older programs: running instances may continue; older versions can no longer start.

-- What is finished, by age. Delivery pays for this one, not the writer of the application.
-- Whoever has a long log makes it beforehand, with CONCURRENTLY: this one keeps writers waiting.
create index if not exists ix_event_finished on changefeed.event (trigger_id, created_at) where state <> 'p';
