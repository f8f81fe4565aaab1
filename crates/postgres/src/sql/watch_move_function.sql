,
-- What the function has been handed decides between insert and update, and whether it knows the
-- row that is deleted (2) or not (3). A row in process stays as it is; its newer change waits.
-- What is moved now may be older than what was moved before (n.newest < q._changefeed_order): that
-- tells what was before, and is no reason to hand the row over again.
-- (A subquery per key instead of a join: a planner that believes the backlog to be empty, because it
-- was when it was vacuumed, would read all of it for every key.)
met_{n} as materialized (
    select n.*, (select q.ctid from changefeed.{leases} q where {same_key}) as place
    from numbered n
    -- What a function has changed itself it need not be handed.
    where n.by is distinct from {watch}
),
folded_{n} as (
    update changefeed.{leases} q
    set _changefeed_newer_operation = case
            when n.newest < q._changefeed_order then {older_operation}
            when q._changefeed_lease_generation is not null then
            case when coalesce(q._changefeed_newer_operation in (1, 2),
                               q._changefeed_operation in (0, 1))
                 then case n.last when 2 then 2 else 1 end
                 else case n.last when 2 then 3 else 0 end end end,
        _changefeed_operation = case
            when q._changefeed_lease_generation is not null then q._changefeed_operation
            when n.newest < q._changefeed_order then
            case when q._changefeed_operation >= 2 then case n.first when 0 then 3 else 2 end
                 else case n.first when 0 then 0 else 1 end end
            when q._changefeed_operation in (1, 2) then case n.last when 2 then 2 else 1 end
            else case n.last when 2 then 3 else 0 end end,
        _changefeed_change_version = case
            when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order
            then q._changefeed_change_version else n.version end,
        _changefeed_order = greatest(q._changefeed_order, n.newest),
        _changefeed_attempt_count = case
            when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order
            then q._changefeed_attempt_count else 0 end,
        _changefeed_retry_time = case
            when q._changefeed_lease_generation is not null or n.newest < q._changefeed_order
            then q._changefeed_retry_time end,
        _changefeed_parked_time = case
            when n.newest < q._changefeed_order then q._changefeed_parked_time end,
        {fold_columns},
        {fold_before}
    from met_{n} n
    where q.ctid = n.place
),
added_{n} as (
    insert into changefeed.{leases}
        ({keys}, _changefeed_change_version, _changefeed_operation, _changefeed_order,
         _changefeed_columns, _changefeed_before)
    select {n_k}, n.version,
           case when n.first <> 0 then case n.last when 2 then 2 else 1 end
                else case n.last when 2 then 3 else 0 end end,
           n.newest, n.changed, n.before
    from met_{n} n
    where n.place is null
)