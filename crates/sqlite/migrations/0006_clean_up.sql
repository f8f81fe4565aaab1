-- changefeed 6: cleaning up does not read the whole log. Here it never did (changefeed_event_done);
-- the number is the same on all databases.

insert into changefeed_schema (version) values (6);
