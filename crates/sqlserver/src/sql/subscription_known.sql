select s.feed_id, (select count(*) from changefeed.consumer c where c.name = convert(varchar(100), @P1) and c.feed_id = @P2)
from (select 1 as one) o
left join changefeed.subscription s with (updlock, rowlock) on s.name = convert(varchar(100), @P1)
