-- What STRING_ESCAPE and JSON_VALUE do on SQL Server. Babelfish escapes bytes instead of characters,
-- makes NULL of an empty text, and takes no escape back; a backslash that REPLACE puts in has to be
-- doubled there.
--@babelfish create function changefeed.json_escape (@text nvarchar(max), @kind nvarchar(20)) returns nvarchar(max) as
--@babelfish begin
--@babelfish     if @text is null return null;
--@babelfish     declare @code int = 1;
--@babelfish     set @text = replace(replace(@text, N'\', N'\\\\'), N'"', N'\"');
--@babelfish     set @text = replace(replace(replace(@text, nchar(9), N'\t'), nchar(10), N'\n'), nchar(13), N'\r');
--@babelfish     if regexp_count(@text collate Latin1_General_BIN2, N'[\x01-\x1f]' collate Latin1_General_BIN2) = 0 return @text;
--@babelfish     while @code < 32
--@babelfish     begin
--@babelfish         set @text = replace(@text, nchar(@code), N'\u00' + substring(N'01', @code / 16 + 1, 1) + substring(N'0123456789abcdef', @code % 16 + 1, 1));
--@babelfish         set @code = @code + 1;
--@babelfish     end;
--@babelfish     return @text;
--@babelfish end;
GO
--@babelfish create function changefeed.json_text (@json nvarchar(max), @path nvarchar(200)) returns nvarchar(max) as
--@babelfish begin
--@babelfish     declare @code int = 1, @text nvarchar(max) = json_value(@json, @path);
--@babelfish     set @text = replace(replace(@text, N'\\', nchar(1)), N'\"', N'"');
--@babelfish     set @text = replace(replace(replace(replace(@text, N'\t', nchar(9)), N'\n', nchar(10)), N'\r', nchar(13)), N'\/', N'/');
--@babelfish     while @code < 32
--@babelfish     begin
--@babelfish         if @code > 1 set @text = replace(@text, N'\u00' + substring(N'01', @code / 16 + 1, 1) + substring(N'0123456789abcdef', @code % 16 + 1, 1), nchar(@code));
--@babelfish         set @code = @code + 1;
--@babelfish     end;
--@babelfish     return replace(replace(@text, N'\u0001', nchar(2)), nchar(1), N'\\');
--@babelfish end;
GO

-- A trigger that publishes to a feed that is gone would fail the application's writes.
-- In the name of the owner: a trigger that whoever deletes may not see would be left behind.
create trigger changefeed.feed_delete on changefeed.feed
    with execute as owner --@sqlserver
    after delete as
begin
    set nocount on;
    --@babelfish delete s from changefeed.shard s join deleted d on d.feed_id = s.feed_id;
    --@babelfish delete s from changefeed.feed_source s join deleted d on d.feed_id = s.feed_id;
    --@babelfish delete b from changefeed.backfill b join deleted d on d.feed_id = b.feed_id;
    --@babelfish delete r from changefeed.feed_reader r join deleted d on d.feed_id = r.feed_id;
    delete p from changefeed.subscription_parked p
    join changefeed.subscription s on s.name = p.name join deleted d on d.feed_id = s.feed_id;
    delete p from changefeed.subscription_shard p
    join changefeed.subscription s on s.name = p.name join deleted d on d.feed_id = s.feed_id;
    delete s from changefeed.subscription s join deleted d on d.feed_id = s.feed_id;
    declare @drop nvarchar(max);
    while 1 = 1
    begin
        set @drop = null;
        select top (1) @drop = concat(N'drop trigger ', quotename(schema_name(o.schema_id)), N'.', quotename(t.name))
        from deleted d
        join sys.triggers t on t.name = concat(N'changefeed_', d.feed_id)
        join sys.objects o on o.object_id = t.object_id;
        if @drop is null break;
        exec sys.sp_executesql @drop;
    end;
end;
GO

-- The shard of a text; documented in docs/feeds.md, the same on every database: the formula is
-- over UTF-8, which SQL Server 2017 does not write by itself.
create function changefeed.shard_of (@value nvarchar(max), @shards int) returns smallint as
begin
    if @value is null return 0;
    declare @total bigint = 0, @byte int = 0, @place int = 1, @length int = len(@value + N'.') - 1;
    declare @code int, @low int, @count int, @part int;
    while @place <= @length and @byte < 255
    begin
        set @code = unicode(substring(@value, @place, 1));
        if @code between 55296 and 56319 and @place < @length
        begin
            set @low = unicode(substring(@value, @place + 1, 1));
            if @low between 56320 and 57343
            begin
                set @code = 65536 + (@code - 55296) * 1024 + (@low - 56320);
                set @place = @place + 1;
            end;
        end;
        set @count = case when @code < 128 then 1 when @code < 2048 then 2 when @code < 65536 then 3 else 4 end;
        set @part = 1;
        while @part <= @count and @byte < 255
        begin
            set @byte = @byte + 1;
            set @total = @total + convert(bigint,
                case when @count = 1 then @code
                     when @part = 1 and @count = 2 then 192 + @code / 64
                     when @part = 1 and @count = 3 then 224 + @code / 4096
                     when @part = 1 then 240 + @code / 262144
                     when @count - @part = 2 then 128 + (@code / 4096) % 64
                     when @count - @part = 1 then 128 + (@code / 64) % 64
                     else 128 + @code % 64 end)
                * ((convert(bigint, @byte) * @byte * 7919) % 65521);
            set @part = @part + 1;
        end;
        set @place = @place + 1;
    end;
    return convert(smallint, (((@total * 40503) % convert(bigint, 4294967296)) / 4096) % @shards);
end;
GO
