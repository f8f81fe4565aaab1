-- As in the migration, for somebody who has deleted it.
if object_id(N'changefeed.global_state') is null
    create table changefeed.global_state (
        function_id       varchar(16) not null,
        table_id          int not null,
        last_sync_version bigint not null constraint df_global_state_version default 0,
        last_access_time  datetime2(3) not null constraint df_global_state_access default sysutcdatetime(),
        constraint pk_global_state primary key (function_id, table_id)
    )
