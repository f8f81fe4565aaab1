-- Where the trigger notes changed keys. The columns have the types beneath the table's own, without
-- lengths, so that noting a key never fails where the table has accepted it.
create table changefeed.{log} (
    {columns},
    op      smallint not null,
    version bigint not null default nextval('changefeed.change_order'),
    -- The top-level transaction, not xmin, which may be a savepoint's.
    xid     xid8 not null default pg_current_xact_id(),
    -- The key as texts, where the row no longer had the columns that the trigger knows.
    raw     jsonb
);
create index {index} on changefeed.{log} (xid, version);
