-- Says that an instance is there, and forgets those that were not heard of for long. Two instances
-- never have one name, so nothing else can insert between the two statements.
delete from changefeed.instance
where name <> @P1 and seen_at < dateadd(millisecond, -@P6, sysutcdatetime());
update changefeed.instance
set roles = @P2, address = nullif(@P3, N''), version = @P4, tallies = @P5, seen_at = sysutcdatetime()
where name = @P1;
if @@rowcount = 0
    insert into changefeed.instance (name, roles, address, version, tallies)
    values (@P1, @P2, nullif(@P3, N''), @P4, @P5)
