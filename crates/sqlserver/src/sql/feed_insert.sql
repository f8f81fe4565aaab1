declare @feed_id smallint = @P1;
if @feed_id is null
    select @feed_id = convert(smallint, isnull(max(feed_id), 0) + 1)
    from changefeed.feed with (updlock, holdlock);
insert into changefeed.feed (feed_id, name, comment, trim_after_ms, trim_unread_after_ms)
values (@feed_id, @P2, {comment}, @P3, @P4);
select @feed_id
