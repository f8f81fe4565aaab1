-- Reading rows that failed may have left the session in a snapshot.
set transaction isolation level read committed;
declare @done bigint = 0, @parked bigint = 0, @base bigint, @now datetime2(6);
declare @newer table (version bigint not null primary key, number int not null);
begin transaction;
{lock}
exec changefeed.note_time;
set @now = sysutcdatetime();
insert into @newer (version, number)
select q._changefeed_change_version, row_number() over (order by q._changefeed_change_version)
from changefeed.{leases} q
where {held} and q._changefeed_newer_operation is not null;
{draw}
{settle}
commit transaction;
select @done, @parked
