declare @base bigint, @done bigint, @only bigint = {only};
declare @newer table (version bigint not null primary key, number int not null);
begin transaction;
{lock}
insert into @newer (version, number)
select q._changefeed_change_version, row_number() over (order by q._changefeed_change_version)
from changefeed.{leases} q where q._changefeed_parked_time is not null
  and (@only is null or q._changefeed_change_version = @only);
{draw}
update changefeed.{leases}
set _changefeed_parked_time = null, _changefeed_attempt_count = 0,
    _changefeed_change_version = @base + (select n.number from @newer n where n.version = _changefeed_change_version)
where _changefeed_parked_time is not null and (@only is null or _changefeed_change_version = @only);
set @done = @@rowcount;
commit transaction;
select @done
