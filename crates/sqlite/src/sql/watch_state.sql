-- As in the migration, for somebody who has deleted them. Numbers begin by the time, above
-- whatever was given before.
create table if not exists changefeed_global_state (
  function_id       text    not null,
  table_id          integer not null,
  last_sync_version integer not null default 0,
  last_access_time  integer not null,
  primary key (function_id, table_id)
) strict, without rowid;
create table if not exists changefeed_watch_counter (
  only_row   integer not null primary key default 1 check (only_row = 1),
  version    integer not null default 0,
  generation integer not null default 0
) strict;
insert into changefeed_watch_counter (version, generation)
select {now} * 1048576 + abs(random() % 1048576), {now} where not exists (select 1 from changefeed_watch_counter);
