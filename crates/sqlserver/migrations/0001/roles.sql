-- Roles -----------------------------------------------------------------------------------------

create role changefeed_reader;
GO
create role changefeed_writer;
GO
create role changefeed_admin;
GO
grant select on changefeed.schema_version to changefeed_reader;
grant select on changefeed.incarnation to changefeed_reader;
grant select on changefeed.feed to changefeed_reader;
grant select on changefeed.feed_source to changefeed_reader;
grant select on changefeed.shard to changefeed_reader;
grant select on changefeed.progress to changefeed_reader;
grant select on changefeed.change to changefeed_reader;
grant select on changefeed.change_row to changefeed_reader;
grant select on changefeed.backfill to changefeed_reader;
grant select, insert, update, delete on changefeed.consumer to changefeed_reader;
grant execute on changefeed.[read] to changefeed_reader;
grant select on changefeed.change_log to changefeed_reader;
grant execute on changefeed.longpoll to changefeed_reader;
grant execute on changefeed.longpoll_guard to changefeed_reader;
-- What the program reads rows with. Babelfish has more of these.
grant execute on changefeed.hex to changefeed_reader;
--@babelfish grant execute on changefeed.json_escape to changefeed_reader;
--@babelfish grant execute on changefeed.json_text to changefeed_reader;
grant insert on changefeed.change to changefeed_writer;
grant update on changefeed.change_id to changefeed_writer;
-- Not ALTER: whoever may alter a procedure of ours can have it read whatever our owner may read.
grant select, insert, update, delete, execute, view definition on schema::changefeed to changefeed_admin; --@sqlserver
--@babelfish grant select, insert, update, delete, execute on schema::changefeed to changefeed_admin;
-- On SQL Server a trigger, a procedure or a view of ours needs no right of whoever uses it.
--@babelfish grant update on changefeed.change_id to changefeed_admin;
--@babelfish grant select on changefeed.shard to changefeed_writer;
--@babelfish grant select on changefeed.backfill to changefeed_writer;
GO
