-- As in the migration, for somebody who has deleted it.
create table if not exists changefeed.global_state (
    function_id       text not null,
    table_id          bigint not null,
    last_sync_version bigint not null default 0,
    last_access_time  timestamptz not null default clock_timestamp(),
    primary key (function_id, table_id)
);
select changefeed.hand_over('global_state')
