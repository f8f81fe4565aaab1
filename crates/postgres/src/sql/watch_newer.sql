,
    _changefeed_change_version = case when q._changefeed_newer_operation is null
        then q._changefeed_change_version else nextval('changefeed.change_version') end,
    _changefeed_attempt_count = case when q._changefeed_newer_operation is null
        then q._changefeed_attempt_count else 0 end,
    -- Nothing was handed over: it still depends on what was before.
    _changefeed_operation = case when q._changefeed_newer_operation is null
        then q._changefeed_operation
        when q._changefeed_operation in (1, 2)
        then case when q._changefeed_newer_operation >= 2 then 2 else 1 end
        else case when q._changefeed_newer_operation >= 2 then 3 else 0 end end,
    _changefeed_newer_operation = null,
    _changefeed_columns = case when q._changefeed_newer_operation is null
        then q._changefeed_columns
        when q._changefeed_columns is not null and q._changefeed_newer_columns is not null
        then array(select distinct c
                   from unnest(q._changefeed_columns || q._changefeed_newer_columns) c) end,
    _changefeed_newer_columns = null,
    _changefeed_before = case when q._changefeed_newer_operation is null
        then q._changefeed_before
        when q._changefeed_before is not null and q._changefeed_newer_before is not null
        then changefeed.few_images(q._changefeed_before || q._changefeed_newer_before) end,
    _changefeed_newer_before = null
