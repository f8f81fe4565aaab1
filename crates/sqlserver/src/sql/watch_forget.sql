declare @gone int = {batch};
while @gone >= {batch} and object_id(N'changefeed.{log}') is not null
begin
    delete top ({batch}) from changefeed.{log} with (readcommittedlock, readpast, rowlock);
    set @gone = @@rowcount;
end
