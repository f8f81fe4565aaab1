        -- Existing rows are loaded, but not those that are here already. Each of them may have changed in any
        -- column: one in process is handed over once more, as it is then, and one that was parked is tried
        -- again. Whoever notes changes from now on may have other numbers for them: all are newer.
        --
        -- Everybody else is kept out by the table's lock: one lock here instead of one for each row.
        update changefeed.watched_table
        set last_version = last_version + (select count(*) from changefeed.{leases} q
                                           where q._changefeed_parked_time is not null)
        where table_id = {table_id};
        update q
        set _changefeed_parked_time = null,
            _changefeed_attempt_count = 0,
            _changefeed_change_version = t.last_version + 1 - p.number
        from changefeed.{leases} q with (tablockx)
        join (select g._changefeed_change_version as version,
                     row_number() over (order by g._changefeed_change_version desc) as number
              from changefeed.{leases} g where g._changefeed_parked_time is not null) p
            on p.version = q._changefeed_change_version
        join changefeed.watched_table t on t.table_id = {table_id};
        update changefeed.{leases} with (tablockx)
        set _changefeed_order = 0,
            _changefeed_newer_operation = case
                when _changefeed_lease_generation is null then _changefeed_newer_operation
                else coalesce(_changefeed_newer_operation, case when _changefeed_operation < 2 then 1 else 0 end) end,
            _changefeed_newer_columns = null,
            _changefeed_columns = case when _changefeed_lease_generation is not null then _changefeed_columns end;
