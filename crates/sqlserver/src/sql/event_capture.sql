create trigger {schema}.{trigger} on {table} after {operations}{replication} as
begin
    -- MERGE fires for each of its parts, whether it has rows or not.
    if not exists (select 1 from inserted) and not exists (select 1 from deleted) return;
    -- The application's own count of rows is what its statement did, not what we do here.
    set nocount on;
    -- A writer that has limited its statement to some rows has not limited what we note of it.
    set rowcount 0;
    -- What filtered indexes need, whatever the writer's session is set to. When this trigger is
    -- over, the session has its own settings again.
    set ansi_warnings on;
    set ansi_padding on;
    set concat_null_yields_null on;
    set numeric_roundabort off;
    -- What writers for Hasura set is understood as well.
    declare @variables nvarchar(4000) = coalesce(nullif(try_convert(nvarchar(4000), session_context(N'changefeed.session_variables')), N''),
        nullif(try_convert(nvarchar(4000), session_context(N'hasura.user')), N''));
    declare @trace nvarchar(4000) = coalesce(nullif(try_convert(nvarchar(4000), session_context(N'changefeed.trace_context')), N''),
        nullif(try_convert(nvarchar(4000), session_context(N'hasura.tracecontext')), N''));
    declare @due datetime2(6) = dateadd(millisecond, {wait_milliseconds}, dateadd(second, {wait_seconds}, sysutcdatetime()));
    {declare}
{statements}
    {publish}
end
