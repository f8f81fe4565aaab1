-- Event triggers, version 3.

insert into changefeed_schema (version) values (3);
