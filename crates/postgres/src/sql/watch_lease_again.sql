-- Rows whose last attempt was cut off have no attempt left.
update changefeed.{leases} q
set _changefeed_parked_time = case when q._changefeed_newer_operation is null
        then clock_timestamp() end,
    _changefeed_last_error = coalesce(q._changefeed_lease_owner, 'an instance')
        || ' did not report back: outcome unknown',
    {unleased}
    {newer_becomes_current}
where q._changefeed_change_version > {low} and q._changefeed_change_version <= {high}
  and q._changefeed_parked_time is null
  and q._changefeed_lease_expiration_time <= clock_timestamp()
  and q._changefeed_attempt_count >= {attempts};
-- Leases rows that have to be tried again: those we hold and have waited long enough, those that
-- nobody holds any more. (Behind the floor nobody has held them yet.) All of a batch have been tried as often, and the more often that was, the
-- fewer they are.
with due as materialized (
    select q.ctid as place, q._changefeed_attempt_count as tried,
           q._changefeed_change_version as version
    from changefeed.{leases} q
    where q._changefeed_change_version > {low} and q._changefeed_change_version <= {high}
      and q._changefeed_parked_time is null
      and case when q._changefeed_lease_generation is null
               then coalesce(q._changefeed_retry_time <= clock_timestamp(),
                             q._changefeed_change_version <= {floor})
               else q._changefeed_lease_expiration_time <= clock_timestamp()
                    or q._changefeed_lease_owner = {owner}
                       and q._changefeed_retry_time <= clock_timestamp() end
    order by q._changefeed_change_version
    limit {batch}
),
first as materialized (select d.tried from due d order by d.version limit 1),
chosen as materialized (
    select d.place from due d
    where d.tried = (select f.tried from first f)
    order by d.version
    limit (select (array[{groups}])[least(f.tried + 1, {attempts})] from first f)
),
{lease_chosen}
