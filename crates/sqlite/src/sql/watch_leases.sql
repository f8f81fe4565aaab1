-- A function's backlog: one row per changed key, with the lease of whoever processes it. Times are
-- milliseconds since 1970.
create table if not exists {leases} (
  {columns},
  _changefeed_change_version        integer not null,
  _changefeed_operation             integer not null,
  _changefeed_attempt_count         integer not null default 0,
  _changefeed_lease_expiration_time integer,
  _changefeed_lease_owner           text,
  _changefeed_lease_generation      integer,
  -- What receivers know the change by besides its version, which a file that was restored from a backup
  -- gives again to another change; and the version that it was drawn for.
  _changefeed_bits                  integer,
  _changefeed_bits_version          integer,
  _changefeed_newer_operation       integer,
  _changefeed_columns               text,
  _changefeed_newer_columns         text,
  -- The row as it was before each of its changes, oldest first, and before those of the newer change: a JSON array;
  -- null where that is not known.
  _changefeed_before                text,
  _changefeed_newer_before          text,
  _changefeed_retry_time            integer,
  _changefeed_last_error            text,
  _changefeed_parked_time           integer,
  primary key ({keys})
);
create index if not exists {leases_version} on {leases} (_changefeed_change_version)
  where _changefeed_parked_time is null;
create index if not exists {leases_held} on {leases} (_changefeed_change_version)
  where _changefeed_parked_time is null
    and (_changefeed_lease_generation is not null or _changefeed_retry_time is not null);
