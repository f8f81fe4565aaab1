declare @now datetime2(6), @tried int, @group int;
declare @newer table (version bigint not null primary key, number int not null);
declare @due table (version bigint not null primary key, tried int not null);
begin transaction;
{lock}
exec changefeed.note_time;
select @generation = t.last_version from changefeed.watched_table t where t.table_id = {table_id};
set @now = sysutcdatetime();
-- Rows whose last attempt was cut off have no attempt left.
insert into @newer (version, number)
select q._changefeed_change_version, row_number() over (order by q._changefeed_change_version)
from changefeed.{leases} q
where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null
  and q._changefeed_lease_expiration_time <= @now and q._changefeed_attempt_count >= {attempts};
{draw}
update changefeed.{leases}
set _changefeed_parked_time = case when _changefeed_newer_operation is null then @now end,
    _changefeed_last_error = concat(isnull(_changefeed_lease_owner, N'an instance'), N' did not report back: outcome unknown'),
    {newer_becomes_current},
    {unleased}
where _changefeed_attempt_count > 0 and _changefeed_parked_time is null
  and _changefeed_lease_expiration_time <= @now and _changefeed_attempt_count >= {attempts};
-- Rows that have to be tried again: those we hold and have waited long enough, those that nobody holds
-- any more. All of a batch have been tried as often, and the more often that was, the fewer they are.
insert into @due (version, tried)
select top ({batch}) q._changefeed_change_version, q._changefeed_attempt_count
from changefeed.{leases} q
where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null
  and (q._changefeed_lease_generation is null
       or q._changefeed_lease_expiration_time <= @now
       or (q._changefeed_lease_owner = {owner} and q._changefeed_retry_time <= @now))
order by q._changefeed_change_version;
select top (1) @tried = d.tried from @due d order by d.version;
set @group = case {groups} else 1 end;
delete from @due
where tried <> @tried
   or version not in (select top (@group) d.version from @due d where d.tried = @tried order by d.version);
-- Otherwise new changes, oldest first.
if @tried is null
    insert into @due (version, tried)
    select top ({batch}) q._changefeed_change_version, 0
    from changefeed.{leases} q
    where q._changefeed_attempt_count = 0 and q._changefeed_parked_time is null
    order by q._changefeed_change_version;
-- In two ways, so that each finds its rows by an index that holds no others: however long the backlog,
-- a lease costs what its batch does.
if @tried is null
    {claim_new}
else
    {claim_tried}
-- What was leased is what bears our number.
select @rows = count(*), @lowest = min(q._changefeed_change_version), @highest = max(q._changefeed_change_version),
       @attempt = max(q._changefeed_attempt_count)
from changefeed.{leases} q
where q._changefeed_attempt_count > 0 and q._changefeed_parked_time is null
  and q._changefeed_lease_generation = @generation;
commit transaction;
