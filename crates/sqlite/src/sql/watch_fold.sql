-- Moves the net changes of the oldest changes to a function's backlog, in the order of the newest
-- change of each key; without a key leaving the database, because a text need not be one that we
-- can read. What the function has been handed decides between insert and update, and whether it
-- knows the row that is deleted (2) or not (3). A row in process stays as it is; its newer change
-- waits. ?1 is the last change to move, ?2 the version before the first new one.
insert into {leases} as q
  ({keys}, _changefeed_change_version, _changefeed_operation, _changefeed_columns,
   _changefeed_before)
select {log_keys}, ?2 + row_number() over (order by newest),
       case when first <> 0 then case last when 2 then 2 else 1 end
            else case last when 2 then 3 else 0 end end,
       {net_columns}, {net_before}
  from (select max(seq) as newest, min(seq * 4 + op) & 3 as first, max(seq * 4 + op) & 3 as last,
               {all_columns} as columns, {all_before} as before, {log_keys}
          from {log} where seq <= ?1 group by {log_keys})
 where true
 order by newest
on conflict ({keys}) do update set
  _changefeed_newer_operation = case when q._changefeed_lease_generation is not null then
      case when coalesce(q._changefeed_newer_operation in (1, 2), q._changefeed_operation in (0, 1))
           then case when excluded._changefeed_operation >= 2 then 2 else 1 end
           else case when excluded._changefeed_operation >= 2 then 3 else 0 end end end,
  _changefeed_newer_columns = case
      when q._changefeed_lease_generation is null then null
      when q._changefeed_newer_operation is null then excluded._changefeed_columns
      else {newer_and_excluded} end,
  _changefeed_columns = case
      when q._changefeed_lease_generation is not null then q._changefeed_columns
      when q._changefeed_newer_operation is null then {own_and_excluded}
      else {all_three} end,
  _changefeed_newer_before = case
      when q._changefeed_lease_generation is null then null
      when q._changefeed_newer_operation is null then excluded._changefeed_before
      else {newer_and_excluded_before} end,
  _changefeed_before = case
      when q._changefeed_lease_generation is not null then q._changefeed_before
      when q._changefeed_newer_operation is null then {own_and_excluded_before}
      else {all_three_before} end,
  _changefeed_operation = case when q._changefeed_lease_generation is not null
      then q._changefeed_operation
      when q._changefeed_operation in (1, 2)
      then case when excluded._changefeed_operation >= 2 then 2 else 1 end
      else case when excluded._changefeed_operation >= 2 then 3 else 0 end end,
  _changefeed_change_version = case when q._changefeed_lease_generation is not null
      then q._changefeed_change_version else excluded._changefeed_change_version end,
  _changefeed_attempt_count = case when q._changefeed_lease_generation is not null
      then q._changefeed_attempt_count else 0 end,
  _changefeed_retry_time = case when q._changefeed_lease_generation is not null
      then q._changefeed_retry_time end,
  _changefeed_parked_time = null
