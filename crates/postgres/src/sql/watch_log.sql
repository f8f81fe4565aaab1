-- Where the trigger notes changed keys. The columns have the types beneath the table's own, without
-- lengths, so that noting a key never fails where the table has accepted it.
create table changefeed.{log} (
    {columns},
    _changefeed_operation smallint not null,
    _changefeed_order     bigint not null default pg_catalog.nextval('changefeed.change_order'::pg_catalog.regclass),
    -- The top-level transaction, not xmin, which may be a savepoint's.
    _changefeed_xid       xid8 not null default pg_catalog.pg_current_xact_id(),
    -- The key as texts, where the row no longer had the columns that the trigger knows.
    _changefeed_raw       jsonb,
    -- The numbers of the columns that an update has changed, with commas; null where not known.
    _changefeed_columns   text
);
create index {index} on changefeed.{log} (_changefeed_xid, _changefeed_order);
