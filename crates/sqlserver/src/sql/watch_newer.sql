_changefeed_change_version = case when _changefeed_newer_operation is null
        then _changefeed_change_version
        else @base + (select n.number from @newer n where n.version = _changefeed_change_version) end,
    _changefeed_attempt_count = case when _changefeed_newer_operation is null
        then _changefeed_attempt_count else 0 end,
    -- Nothing was handed over: it still depends on what was before.
    _changefeed_operation = case
        when _changefeed_newer_operation is null then _changefeed_operation
        when _changefeed_operation in (1, 2)
        then case when _changefeed_newer_operation >= 2 then 2 else 1 end
        else case when _changefeed_newer_operation >= 2 then 3 else 0 end end,
    _changefeed_columns = case
        when _changefeed_newer_operation is null then _changefeed_columns
        when _changefeed_columns is not null and _changefeed_newer_columns is not null
        then concat(_changefeed_columns, _changefeed_newer_columns) end,
    _changefeed_newer_operation = null,
    _changefeed_newer_columns = null
