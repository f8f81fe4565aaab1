-- changefeed 3: event triggers on PostgreSQL.

insert into changefeed.schema_version (version) values (3);
