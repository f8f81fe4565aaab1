-- What we use of SQL Server's own objects, as its documentation describes them for 2017. The
-- binder comes without them; with these, it finds a column or a parameter that does not exist.

create table sys.databases (
    database_id int, name sysname, compatibility_level tinyint, collation_name sysname null,
    state_desc nvarchar(60), is_read_only bit, is_read_committed_snapshot_on bit,
    snapshot_isolation_state tinyint, snapshot_isolation_state_desc nvarchar(60),
    is_auto_close_on bit, recovery_model_desc nvarchar(60), create_date datetime,
    owner_sid varbinary(85), delayed_durability int, delayed_durability_desc nvarchar(60)
);
GO
create table sys.schemas (schema_id int, name sysname, principal_id int null);
GO
create table sys.objects (
    object_id int, name sysname, principal_id int null, schema_id int, parent_object_id int,
    type char(2), type_desc nvarchar(60), create_date datetime, modify_date datetime,
    is_ms_shipped bit
);
GO
create table sys.tables (
    object_id int, name sysname, principal_id int null, schema_id int, parent_object_id int,
    type char(2), type_desc nvarchar(60), create_date datetime, modify_date datetime,
    is_ms_shipped bit, lock_escalation tinyint, temporal_type tinyint, is_memory_optimized bit,
    is_external bit, is_replicated bit, is_tracked_by_cdc bit, max_column_id_used int
);
GO
create table sys.views (
    object_id int, name sysname, schema_id int, parent_object_id int, type char(2),
    create_date datetime, modify_date datetime, is_ms_shipped bit
);
GO
create table sys.procedures (
    object_id int, name sysname, schema_id int, parent_object_id int, type char(2),
    create_date datetime, modify_date datetime, is_ms_shipped bit
);
GO
create table sys.sequences (
    object_id int, name sysname, schema_id int, parent_object_id int, type char(2),
    start_value sql_variant, increment sql_variant, minimum_value sql_variant,
    maximum_value sql_variant, is_cycling bit, is_cached bit, cache_size int null,
    system_type_id tinyint, user_type_id int, current_value sql_variant, is_exhausted bit
);
GO
create table sys.columns (
    object_id int, name sysname null, column_id int, system_type_id tinyint, user_type_id int,
    max_length smallint, precision tinyint, scale tinyint, collation_name sysname null,
    is_nullable bit, is_rowguidcol bit, is_identity bit, is_computed bit, is_filestream bit,
    is_sparse bit, is_column_set bit, is_hidden bit, generated_always_type tinyint,
    default_object_id int, is_masked bit
);
GO
create table sys.types (
    name sysname, system_type_id tinyint, user_type_id int, schema_id int, principal_id int null,
    max_length smallint, precision tinyint, scale tinyint, collation_name sysname null,
    is_nullable bit, is_user_defined bit, is_assembly_type bit, is_table_type bit
);
GO
create table sys.indexes (
    object_id int, name sysname null, index_id int, type tinyint, type_desc nvarchar(60),
    is_unique bit, data_space_id int, ignore_dup_key bit, is_primary_key bit,
    is_unique_constraint bit, is_disabled bit, is_hypothetical bit, has_filter bit,
    filter_definition nvarchar(max) null
);
GO
create table sys.index_columns (
    object_id int, index_id int, index_column_id int, column_id int, key_ordinal tinyint,
    partition_ordinal tinyint, is_descending_key bit, is_included_column bit
);
GO
create table sys.key_constraints (
    object_id int, name sysname, schema_id int, parent_object_id int, type char(2),
    unique_index_id int, is_system_named bit
);
GO
create table sys.foreign_keys (
    object_id int, name sysname, schema_id int, parent_object_id int, type char(2),
    referenced_object_id int, key_index_id int, is_disabled bit, is_not_trusted bit,
    delete_referential_action tinyint, update_referential_action tinyint
);
GO
create table sys.foreign_key_columns (
    constraint_object_id int, constraint_column_id int, parent_object_id int,
    parent_column_id int, referenced_object_id int, referenced_column_id int
);
GO
create table sys.triggers (
    object_id int, name sysname, parent_class tinyint, parent_class_desc nvarchar(60),
    parent_id int, type char(2), type_desc nvarchar(60), create_date datetime,
    modify_date datetime, is_ms_shipped bit, is_disabled bit, is_not_for_replication bit,
    is_instead_of_trigger bit
);
GO
create table sys.trigger_events (
    object_id int, type int, type_desc nvarchar(60), is_first bit, is_last bit,
    event_group_type int, event_group_type_desc nvarchar(60), is_trigger_event bit
);
GO
create table sys.sql_modules (
    object_id int, definition nvarchar(max) null, uses_ansi_nulls bit,
    uses_quoted_identifier bit, is_schema_bound bit, execute_as_principal_id int null
);
GO
create table sys.parameters (
    object_id int, name sysname, parameter_id int, system_type_id tinyint, user_type_id int,
    max_length smallint, precision tinyint, scale tinyint, is_output bit, has_default_value bit
);
GO
create table sys.extended_properties (
    class tinyint, class_desc nvarchar(60), major_id int, minor_id int, name sysname,
    value sql_variant
);
GO
create table sys.partitions (
    partition_id bigint, object_id int, index_id int, partition_number int, hobt_id bigint,
    rows bigint
);
GO
create table sys.database_principals (
    principal_id int, name sysname, type char(1), type_desc nvarchar(60),
    default_schema_name sysname null, sid varbinary(85), is_fixed_role bit,
    owning_principal_id int null
);
GO
create table sys.database_role_members (role_principal_id int, member_principal_id int);
GO
create table sys.database_permissions (
    class tinyint, class_desc nvarchar(60), major_id int, minor_id int, grantee_principal_id int,
    grantor_principal_id int, type char(4), permission_name nvarchar(128), state char(1),
    state_desc nvarchar(60)
);
GO
create table sys.configurations (
    configuration_id int, name nvarchar(35), value sql_variant, value_in_use sql_variant
);
GO
create table sys.change_tracking_databases (
    database_id int, is_auto_cleanup_on bit, retention_period int,
    retention_period_units tinyint, retention_period_units_desc nvarchar(60)
);
GO
create table sys.change_tracking_tables (
    object_id int, is_track_columns_updated_on bit, begin_version bigint, cleanup_version bigint,
    min_valid_version bigint
);
GO
create table sys.internal_tables (
    object_id int, name sysname, schema_id int, parent_object_id int, type char(2),
    create_date datetime, modify_date datetime, internal_type tinyint, internal_type_desc nvarchar(60),
    parent_id int, parent_minor_id int
);
GO
create table sys.dm_tran_commit_table (
    commit_ts bigint, xdes_id bigint, commit_lbn bigint, commit_csn bigint, commit_time datetime
);
GO
create table sys.dm_tran_locks (
    resource_type nvarchar(60), resource_subtype nvarchar(60), resource_database_id int,
    resource_description nvarchar(256), resource_associated_entity_id bigint,
    request_mode nvarchar(60), request_type nvarchar(60), request_status nvarchar(60),
    request_session_id int, request_owner_type nvarchar(60), request_owner_id bigint,
    request_owner_guid uniqueidentifier
);
GO
create table sys.dm_exec_requests (session_id smallint, status nvarchar(30), wait_type nvarchar(60));
GO
create table sys.dm_exec_sessions (
    session_id smallint, login_time datetime, host_name nvarchar(128), program_name nvarchar(128),
    login_name nvarchar(128), status nvarchar(30), database_id smallint,
    transaction_isolation_level smallint, open_transaction_count int,
    last_request_start_time datetime, last_request_end_time datetime, is_user_process bit
);
GO
create table sys.dm_exec_connections (
    session_id int, encrypt_option nvarchar(40), auth_scheme nvarchar(40),
    net_transport nvarchar(40), protocol_version int
);
GO
create table sys.dm_tran_session_transactions (
    session_id int, transaction_id bigint, is_user_transaction bit, open_transaction_count int
);
GO
create table sys.dm_tran_active_transactions (
    transaction_id bigint, name nvarchar(32), transaction_begin_time datetime,
    transaction_type int, transaction_state int
);
GO

-- Procedures -----------------------------------------------------------------------------------

create procedure sys.sp_configure @configname varchar(35) = null, @configvalue int = null
as return 0;
GO
create procedure sys.sp_getapplock
    @Resource nvarchar(255), @LockMode varchar(32), @LockOwner varchar(32) = 'Transaction',
    @LockTimeout int = null, @DbPrincipal sysname = 'public'
as return 0;
GO
create procedure sys.sp_releaseapplock
    @Resource nvarchar(255), @LockOwner varchar(32) = 'Transaction', @DbPrincipal sysname = 'public'
as return 0;
GO
create procedure sys.sp_set_session_context
    @key sysname, @value sql_variant, @read_only bit = 0
as return 0;
GO
-- What follows @params are the parameters that it names.
create procedure sys.sp_executesql @stmt nvarchar(max), @params nvarchar(max) = null
as return 0;
GO
create procedure sys.sp_rename
    @objname nvarchar(1035), @newname sysname, @objtype varchar(13) = null
as return 0;
GO
create procedure sys.sp_settriggerorder
    @triggername nvarchar(517), @order varchar(10), @stmttype varchar(50),
    @namespace varchar(10) = null
as return 0;
GO
create table sys.dm_xe_sessions (address varbinary(8), name nvarchar(256));
GO
create table sys.dm_xe_session_targets (
    event_session_address varbinary(8), target_name nvarchar(60), target_data nvarchar(max)
);
GO
create table sys.dm_exec_query_stats (
    sql_handle varbinary(64), plan_handle varbinary(64), statement_start_offset int,
    statement_end_offset int, execution_count bigint, total_worker_time bigint
);
GO
create function sys.dm_exec_sql_text (@handle varbinary(64)) returns table
as return select convert(smallint, null) as dbid, convert(nvarchar(max), null) as text;
GO
create function sys.dm_exec_text_query_plan (@handle varbinary(64), @start int, @end int) returns table
as return select convert(smallint, null) as dbid, convert(nvarchar(max), null) as query_plan;
GO
create function sys.dm_exec_plan_attributes (@handle varbinary(64)) returns table
as return select convert(varchar(128), null) as attribute, convert(sql_variant, null) as value;
GO
