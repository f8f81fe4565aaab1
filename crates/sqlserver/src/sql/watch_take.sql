-- Moves changes and leases a batch. One message, which holds nothing when it is over.
declare @stale bit = 0, @missed nvarchar(400), @loading smallint, @generation bigint, @rows int = 0,
        @lowest bigint, @highest bigint, @attempt int, @base bigint;
{move}
if @stale = 0
begin
{lease}
end;
select @generation, @lowest, @highest, @attempt, @rows, @stale, @missed,
       (select w.loading from changefeed.watch w where w.function_id = {function_id})
