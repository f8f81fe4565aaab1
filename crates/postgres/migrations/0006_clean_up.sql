-- changefeed 6: cleaning up does not read the whole log, on PostgreSQL.

-- What is finished, by age. Delivery pays for this one, not the writer of the application.
create index ix_event_finished on changefeed.event (trigger_id, created_at) where state <> 'p';

insert into changefeed.schema_version (version) values (6);
