-- Takes or renews many leases (@P1): those that the owner (@P2) has, and at most @P4 that are free, expired, or whose
-- renewal is as old as `stale` says. One call for all. What the owner has is renewed by one statement, which touches
-- no row of others; the rest goes one by one, because waiting for the row of one lease must not hold the rows of others.
-- Of what others hold the renewal is told.
set nocount on;
declare @owner nvarchar(200) = @P2, @ttl int = @P3, @more int = @P4;
declare @now datetime2(6) = sysutcdatetime();
declare @expires datetime2(6) = dateadd(millisecond, @ttl, @now);
declare @wanted table (name nvarchar(200) not null primary key, stale bigint null);
declare @granted table (name nvarchar(200) not null primary key, generation bigint not null);
declare @free table (name nvarchar(200) not null primary key, stale bigint null);
declare @name nvarchar(200), @stale bigint, @generation bigint, @renewal bigint, @held_for int;
insert into @wanted (name, stale)
select w.name, max(w.stale) from openjson(@P1) with (name nvarchar(200), stale bigint) w group by w.name;
update changefeed.lease
set renewal = renewal + 1, ttl_milliseconds = @ttl,
    -- As in take_lease: a late call must not shorten what a newer one was granted.
    expires_at = case when expires_at > @expires
                           and expires_at <= dateadd(millisecond, @ttl, sysutcdatetime())
                      then expires_at else @expires end
output inserted.name, inserted.generation into @granted (name, generation)
from @wanted w
join changefeed.lease with (rowlock, forceseek) on changefeed.lease.name = w.name
where changefeed.lease.owner = @owner and changefeed.lease.expires_at > @now
option (loop join, force order);
insert into @free (name, stale)
select w.name, w.stale from @wanted w
left join changefeed.lease l on l.name = w.name
where not exists (select 1 from @granted g where g.name = w.name)
  and (l.name is null or l.owner = @owner or l.expires_at <= @now or l.renewal = w.stale);
while @more > 0
begin
    set @name = null;
    select top (1) @name = f.name, @stale = f.stale from @free f order by f.name;
    if @name is null break;
    delete from @free where name = @name;
    exec changefeed.take_lease @name, @owner, @ttl, @stale, @generation output, @renewal output, @held_for output;
    if @generation is not null
    begin
        insert into @granted (name, generation) values (@name, @generation);
        set @more = @more - 1;
    end;
end;
select g.name, g.generation, convert(bigint, null), convert(int, null) from @granted g
union all
select l.name, convert(bigint, null), l.renewal, l.ttl_milliseconds
from @wanted w join changefeed.lease l on l.name = w.name
where not exists (select 1 from @granted g where g.name = w.name)
