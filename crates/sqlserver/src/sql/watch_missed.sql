if @missed is not null
    begin
        -- All rows are handed over anew; which ones were deleted nobody can know.
        update changefeed.watch set loading = 1, loaded_to = null where table_id = {table_id};
        update changefeed.watched_table set missed_at = sysutcdatetime(), missed = @missed where table_id = {table_id};
{functions}
    end;
