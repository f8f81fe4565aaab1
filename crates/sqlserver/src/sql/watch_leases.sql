-- A function's backlog: one row per changed key, with the lease of whoever processes it.
create table changefeed.{leases} (
    {columns},
    _changefeed_change_version        bigint not null,
    -- 0 insert, 1 update, 2 delete, 3 delete of a row that the function never had; relative to what it
    -- has been handed.
    _changefeed_operation             smallint not null,
    _changefeed_attempt_count         int not null default 0,
    _changefeed_lease_expiration_time datetime2(6) null,
    _changefeed_lease_owner           nvarchar(400) null,
    _changefeed_lease_generation      bigint null,
    -- What receivers know the change by besides its version, which a database that was restored from a backup
    -- gives again to another change; and the version that it was drawn for.
    _changefeed_bits                  bigint null,
    _changefeed_bits_version          bigint null,
    -- Where the newest change was among all changes of the table; 0 where that is not known, so that every
    -- change is newer.
    _changefeed_order                 bigint not null default 0,
    -- A change that came while the row was in process; it is handed over afterwards.
    _changefeed_newer_operation       smallint null,
    -- The numbers of the columns that were changed, between commas, some of them more than once, and
    -- those of the newer change; null where that is not known: then any column may have changed.
    _changefeed_columns               varchar(max) null,
    _changefeed_newer_columns         varchar(max) null,
    -- When a row that failed is tried again.
    _changefeed_retry_time            datetime2(6) null,
    _changefeed_last_error            nvarchar(max) null,
    -- When it was given up.
    _changefeed_parked_time           datetime2(6) null,
    primary key ({keys})
);
alter table changefeed.{leases} set (lock_escalation = disable); --@sqlserver
-- Rows that nobody has had yet, and rows that somebody has, or had.
create index {leases}_new on changefeed.{leases} (_changefeed_change_version)
    where _changefeed_attempt_count = 0 and _changefeed_parked_time is null;
create index {leases}_tried on changefeed.{leases} (_changefeed_change_version)
    where _changefeed_attempt_count > 0 and _changefeed_parked_time is null;
