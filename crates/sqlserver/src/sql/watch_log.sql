-- Where the trigger notes changed keys. No index that needs the writer's session to be set in some way,
-- and no identity: @@identity belongs to the application.
create table changefeed.{log} (
    _changefeed_order     bigint not null primary key default next value for changefeed.change_order,
    {columns},
    -- 0 insert, 1 update, 2 delete
    _changefeed_operation smallint not null,
    -- The columns that an update has written, as COLUMNS_UPDATED() tells them; null where not noted.
    _changefeed_columns   varbinary(8000) null
);
-- A large write must not lock out the others.
alter table changefeed.{log} set (lock_escalation = disable); --@sqlserver
