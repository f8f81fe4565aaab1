-- The newest number that a shard gave before a time, and up to where it was trimmed. The time is given as days,
-- seconds and milliseconds since 1970, because the server adds in 32 bits.
declare @feed_id smallint = @P1, @shard smallint = @P2;
declare @before datetime2(6) = dateadd(millisecond, @P5, dateadd(second, @P4, dateadd(day, @P3,
    convert(datetime2(6), '19700101', 112))));
select (select top (1) p.last_change_sequence_number
        from changefeed.progress p
        where p.feed_id = s.feed_id and p.shard = s.shard and p.swept_at < @before
        order by p.swept_at desc, p.last_change_sequence_number desc),
       s.trimmed_to
from changefeed.shard s
where s.feed_id = @feed_id and s.shard = @shard
