create trigger {schema}.{trigger} on {table} after insert, update, delete as
begin
    -- The application's own count of rows is what its statement did, not what we do here.
    set nocount on;
    -- A writer that has limited its statement to some rows has not limited what we note of it.
    set rowcount 0;
    -- MERGE fires for each of its parts, whether it has rows or not.
    if not exists (select 1 from inserted) and not exists (select 1 from deleted) return;
    -- A row that moved to another key is gone from the old one. First, so that it comes first.
    insert into changefeed.{log} ({keys}, _changefeed_operation)
    select {d_keys}, 2
    from deleted d
    where not exists (select 1 from inserted i where {same_key});
    -- Nothing here names a column that is not of the key: others may come, go and be renamed.
    insert into changefeed.{log} ({keys}, _changefeed_operation, _changefeed_columns)
    select {i_keys}, 0, null
    from inserted i
    where not exists (select 1 from deleted d where {same_key});
    insert into changefeed.{log} ({keys}, _changefeed_operation, _changefeed_columns)
    select {i_keys}, 1, {written}
    from inserted i
    where exists (select 1 from deleted d where {same_key});
end
