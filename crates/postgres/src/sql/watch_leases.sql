-- A function's backlog: one row per changed key, with the lease of whoever processes it.
create table changefeed.{leases} (
    {columns},
    _changefeed_change_version        bigint not null,
    -- 0 insert, 1 update, 2 delete, relative to what the function has been handed.
    _changefeed_operation             smallint not null,
    _changefeed_attempt_count         integer not null default 0,
    _changefeed_lease_expiration_time timestamptz,
    _changefeed_lease_owner           text,
    _changefeed_lease_generation      bigint,
    -- What receivers know the change by besides its version, which a database that was restored from a backup
    -- gives again to another change; and the version that it was drawn for.
    _changefeed_bits                  bigint,
    _changefeed_bits_version          bigint,
    -- Where the newest change was among all changes of the table.
    _changefeed_order                 bigint not null default 0,
    -- A change that came while the row was in process; it is handed over afterwards.
    _changefeed_newer_operation       smallint,
    -- The numbers of the columns that were changed, and those of the newer change; null where that is
    -- not known: then any column may have changed.
    _changefeed_columns               smallint[],
    _changefeed_newer_columns         smallint[],
    -- The row as it was before each of its changes, oldest first, and before those of the newer change; null
    -- where that is not known.
    _changefeed_before                text[],
    _changefeed_newer_before          text[],
    -- When a row that failed is tried again.
    _changefeed_retry_time            timestamptz,
    _changefeed_last_error            text,
    -- When it was given up.
    _changefeed_parked_time           timestamptz,
    primary key ({keys})
) with (fillfactor = 35);
-- Without the columns that a lease changes, and with room for the leased row on the same page, so
-- that leasing touches no index.
create index {index} on changefeed.{leases} (_changefeed_change_version)
    where _changefeed_parked_time is null;
create trigger changefeed_truncated after truncate on changefeed.{leases}
    for each statement execute function changefeed.backlog_truncated();
select changefeed.hand_over('{leases}');
