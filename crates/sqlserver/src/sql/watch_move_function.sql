    -- How many keys there are is known only when they are there: the plans are made for them then.
    --
    -- What the function has been handed decides between insert and update, and whether it knows the
    -- row that is deleted (2) or not (3). A row in process stays as it is; its newer change waits. What is
    -- moved now may be older than what was moved before (n.newest < q._changefeed_order), if its
    -- transaction took longer: that tells what was before, and is no reason to hand the row over again,
    -- except for its columns.
    update q
    set _changefeed_newer_operation = case
            when n.newest < q._changefeed_order then
                case when q._changefeed_lease_generation is not null and q._changefeed_operation < 2
                          and n.[columns] is not null
                     then coalesce(q._changefeed_newer_operation, 1) else q._changefeed_newer_operation end
            when q._changefeed_lease_generation is not null then
                case when coalesce(q._changefeed_newer_operation, case when q._changefeed_operation < 2 then 1 else 0 end) in (1, 2)
                     then case n.last when 2 then 2 else 1 end
                     else case n.last when 2 then 3 else 0 end end end,
        _changefeed_operation = case
            when q._changefeed_lease_generation is not null then q._changefeed_operation
            when n.newest < q._changefeed_order then
                case when q._changefeed_operation >= 2 then case n.first when 0 then 3 else 2 end
                     else case n.first when 0 then 0 else 1 end end
            when q._changefeed_operation in (1, 2) then case n.last when 2 then 2 else 1 end
            else case n.last when 2 then 3 else 0 end end,
        _changefeed_newer_columns = case
            when q._changefeed_lease_generation is null then null
            when q._changefeed_newer_operation is null then n.[columns]
            when q._changefeed_newer_columns is not null and n.[columns] is not null
            then concat(q._changefeed_newer_columns, n.[columns]) end,
        _changefeed_columns = case
            when q._changefeed_lease_generation is not null then q._changefeed_columns
            when q._changefeed_columns is not null and n.[columns] is not null
                 and (q._changefeed_newer_operation is null or q._changefeed_newer_columns is not null)
            then concat(q._changefeed_columns, n.[columns], q._changefeed_newer_columns) end,
        _changefeed_change_version = case
            when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order
            then q._changefeed_change_version else @base + n.number end,
        _changefeed_attempt_count = case
            when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order
            then q._changefeed_attempt_count else 0 end,
        _changefeed_retry_time = case
            when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order
            then q._changefeed_retry_time end,
        _changefeed_parked_time = case
            when n.newest < q._changefeed_order then q._changefeed_parked_time end,
        _changefeed_order = case when n.newest < q._changefeed_order then q._changefeed_order else n.newest end
    from changefeed.{leases} q join @net n on {same_key}
    option (recompile);
    insert into changefeed.{leases}
        ({keys}, _changefeed_change_version, _changefeed_operation, _changefeed_order, _changefeed_columns)
    select {n_k}, @base + n.number,
           case when n.first <> 0 then case n.last when 2 then 2 else 1 end
                else case n.last when 2 then 3 else 0 end end,
           n.newest, n.[columns]
    from @net n
    where not exists (select 1 from changefeed.{leases} q where {same_key})
    option (recompile);
    -- However often a row is changed before somebody takes it, its columns are only so many.
    update q
    set _changefeed_columns = (
            select concat(',', string_agg(convert(varchar(max), c.column_id), ','), ',') from sys.columns c
            where c.object_id = {table_id} and charindex(concat(',', c.column_id, ','), q._changefeed_columns) > 0),
        _changefeed_newer_columns = case when q._changefeed_newer_columns is not null then (
            select concat(',', string_agg(convert(varchar(max), c.column_id), ','), ',') from sys.columns c
            where c.object_id = {table_id} and charindex(concat(',', c.column_id, ','), q._changefeed_newer_columns) > 0) end
    from changefeed.{leases} q join @net n on {same_key}
    where q._changefeed_columns is not null
      and len(q._changefeed_columns) + len(isnull(q._changefeed_newer_columns, '')) > 4000
    option (recompile);
