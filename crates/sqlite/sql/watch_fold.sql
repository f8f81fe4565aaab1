-- What the function has been handed decides between insert and update, and whether it knows the
-- row that is deleted (2) or not (3). A row in process stays as it is; its newer change waits.
-- ?1 is the version, ?2 the first and ?3 the last operation.
insert into {leases} as q ({keys}, _changefeed_change_version, _changefeed_operation)
values ({values}, ?1, case when ?2 <> 0 then case ?3 when 2 then 2 else 1 end
                           else case ?3 when 2 then 3 else 0 end end)
on conflict ({keys}) do update set
  _changefeed_newer_operation = case when q._changefeed_lease_generation is not null then
      case when coalesce(q._changefeed_newer_operation in (1, 2), q._changefeed_operation in (0, 1))
           then case ?3 when 2 then 2 else 1 end
           else case ?3 when 2 then 3 else 0 end end end,
  _changefeed_operation = case when q._changefeed_lease_generation is not null
      then q._changefeed_operation
      when q._changefeed_operation in (1, 2) then case ?3 when 2 then 2 else 1 end
      else case ?3 when 2 then 3 else 0 end end,
  _changefeed_change_version = case when q._changefeed_lease_generation is not null
      then q._changefeed_change_version else ?1 end,
  _changefeed_attempt_count = case when q._changefeed_lease_generation is not null
      then q._changefeed_attempt_count else 0 end,
  _changefeed_retry_time = case when q._changefeed_lease_generation is not null
      then q._changefeed_retry_time end,
  _changefeed_parked_time = null
