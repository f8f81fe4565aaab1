-- changefeed: feeds on SQL Server 2017 and later, Azure SQL, and Babelfish for PostgreSQL.
-- Older programs: there are none.
--
-- What users see: feed, shard, change, consumer, the sequence change_id, sweep, sweep_loop,
-- longpoll and longpoll_guard. Everything else is how it works and may change.
--
-- How a change gets its number:
--   1. A writer inserts (feed_id, shard, change_id) into `change`, in its own transaction.
--   2. A sweep locks the row of the shard, and only then, in a statement of its own, collects the
--      changes that are committed and have no number; it numbers them in order of change_id, and
--      the numbers commit together with the new end of the shard.
--   3. The collecting must see one moment: a scan that passes an uncommitted change A and then
--      meets B, which began after A was committed, would give B the smaller number. With
--      READ_COMMITTED_SNAPSHOT a statement sees one moment. Without it, but with
--      ALLOW_SNAPSHOT_ISOLATION, the end of the shard and its changes are read in one snapshot, before the
--      lock; if the end is still the same under the lock, nobody has swept in between. With neither, a bound is
--      drawn from the sequence before the scan, and only ids below it are taken: whoever drew such an id had
--      begun by then, so what was committed before it began is there to be seen. Ids of one's own above the
--      sequence are never numbered then; doctor says so.
--
-- A procedure that has a transaction of its own, or none, must not inherit the caller's: drivers that turn off
-- auto-commit send SET IMPLICIT_TRANSACTIONS ON, and then the first statement that touches a table begins a transaction
-- that nobody ends, and BEGIN TRANSACTION begins two. So it begins with switching that off, and a limit of rows
-- with it; both are the caller's again when it returns.
--
-- A lock hint never carries correctness alone: rows are claimed by a conditional update, and what
-- was claimed is counted.
--
-- A line that ends in --@sqlserver is for SQL Server alone; a comment that begins with @babelfish
-- takes its place there. GO ends a batch.

create schema changefeed;
GO

create table changefeed.schema_version (
    version      int not null constraint pk_schema_version primary key,
    -- Of the text of the migration: one that was changed afterwards is noticed.
    checksum     varchar(16) not null,
    installed_at datetime2(3) not null constraint df_schema_version default sysutcdatetime()
);
GO

-- The bytes as text, 0x and two digits each: what style 1 of CONVERT does on SQL Server.
create function changefeed.hex (@value varbinary(max)) returns varchar(max) as
begin
    return convert(varchar(max), @value, 1); --@sqlserver
    --@babelfish if @value is null return null;
    --@babelfish declare @text varchar(max) = '0x', @place int = 1, @byte int;
    --@babelfish while @place <= datalength(@value)
    --@babelfish begin
    --@babelfish     set @byte = convert(int, substring(@value, @place, 1));
    --@babelfish     set @text = @text + substring('0123456789ABCDEF', @byte / 16 + 1, 1)
    --@babelfish                       + substring('0123456789ABCDEF', @byte % 16 + 1, 1);
    --@babelfish     set @place = @place + 1;
    --@babelfish end;
    --@babelfish return @text;
end;
GO

-- The lives of this database, the last of which counts: it began here, or with a recovery from a backup. Cursors
-- belong to one. Milliseconds since 1970 and chance, in hexadecimal digits.
create table changefeed.incarnation (
    number      int not null constraint pk_incarnation primary key,
    incarnation char(32) not null
);
GO

-- Begins another life: to be called after the database was restored from a backup. Readers who say which life
-- their cursor belongs to are refused then, instead of missing what is lost.
create procedure changefeed.recover
as
begin
    set nocount on;
    set rowcount 0;
    set implicit_transactions off;
    declare @now binary(8) = convert(binary(8), datediff_big(millisecond, '1970-01-01', sysutcdatetime()));
    insert into changefeed.incarnation (number, incarnation)
    select isnull(max(i.number), 0) + 1,
           lower(concat(substring(changefeed.hex(@now), 7, 12),
                        substring(replace(convert(char(36), newid()), '-', ''), 1, 20)))
    from changefeed.incarnation i with (tablockx);
    select top (1) i.incarnation from changefeed.incarnation i order by i.number desc;
end;
GO

-- Feeds and shards ------------------------------------------------------------------------------

create table changefeed.feed (
    feed_id smallint not null constraint pk_feed primary key,
    name    varchar(100) not null constraint uq_feed_name unique,
    comment nvarchar(max) null,
    -- How long its changes are kept after they got their numbers, in milliseconds: those that every consumer has
    -- read, and those that some consumer has not read. For ever where it is null.
    trim_after_ms        bigint null constraint ck_feed_trim_after check (trim_after_ms >= 0),
    trim_unread_after_ms bigint null,
    constraint ck_feed_trim_unread_after check (trim_unread_after_ms >= trim_after_ms),
    constraint ck_feed_name check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0)
);
GO

-- The primary key is not the clustered index, and that matters: inserting a change checks its
-- shard by the primary key and locks an entry of that index, while a sweep locks the row itself.
-- So a writer in a long serializable transaction does not keep the shard from being swept.
-- Babelfish mistakes the schema of a table when it checks a foreign key in a session that has called
-- a procedure, and an insert of the application fails. So there are no foreign keys there: triggers refuse
-- what has no shard, and remove what belongs to a shard or a feed that goes.
create table changefeed.shard (
    feed_id                     smallint not null
        constraint fk_shard_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    shard                       smallint not null,
    sweep_group                 smallint not null constraint df_shard_group default 0,
    longpoll                    bit not null constraint df_shard_longpoll default 1,
    last_change_sequence_number bigint not null
        constraint df_shard_last default 2000000000000000
        constraint ck_shard_last check (last_change_sequence_number >= 0),
    last_sweep_time             datetime2(6) not null constraint df_shard_time default sysutcdatetime(),
    -- The number before the first live one, from the first sweep on; everything up to it is for
    -- data older than the feed.
    start                       bigint null,
    -- The highest number that trimming has removed, and that backfilling has given.
    trimmed_to                  bigint not null constraint df_shard_trimmed default 0,
    backfilled_to               bigint null,
    -- How often the number of shards had been changed when this one was made, and whether it was changed again: then
    -- nothing is added to this one. What was added before may still wait for its number.
    generation                  smallint not null constraint df_shard_generation default 0,
    closed                      bit not null constraint df_shard_closed default 0,
    constraint pk_shard primary key nonclustered (feed_id, shard)
);
create unique clustered index ix_sweep_group on changefeed.shard (sweep_group, feed_id, shard);
-- For writers: see change_insert. Sweeps change nothing that is in it, so they never lock it.
create index ix_closed on changefeed.shard (feed_id, shard) include (closed) where closed = 1; --@sqlserver
GO

-- When which numbers were given, about one row a second: the age of a number.
create table changefeed.progress (
    feed_id                     smallint not null,
    shard                       smallint not null,
    last_change_sequence_number bigint not null,
    swept_at                    datetime2(6) not null,
    constraint pk_progress primary key (feed_id, shard, last_change_sequence_number)
    , constraint fk_progress_shard foreign key (feed_id, shard) --@sqlserver
        references changefeed.shard (feed_id, shard) on delete cascade --@sqlserver
);
-- Until where a shard is old enough to be trimmed.
create index ix_progress_swept on changefeed.progress (feed_id, shard, swept_at)
    include (last_change_sequence_number);
GO

-- Where the rows behind a feed's changes are.
create table changefeed.feed_source (
    feed_id          smallint not null constraint pk_feed_source primary key
        constraint fk_feed_source_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    kind             varchar(10) not null,
    table_id         int null,
    change_id_column nvarchar(128) null,
    shard_by         nvarchar(128) null,
    -- The shards that the rows of a captured table are spread over, from first_shard on.
    shards           smallint not null,
    first_shard      smallint not null constraint df_feed_source_first default 0,
    -- Whether its changes keep the row before and after.
    images           bit not null constraint df_feed_source_images default 0,
    -- Which rows are in it, as the condition was written, and which columns are in its images, as a JSON array.
    condition        nvarchar(max) null,
    columns          nvarchar(max) null,
    -- The columns of a captured table that its rows are known by, as column numbers with commas: its primary key
    -- when the feed was made.
    key_columns      varchar(200) null,
    ulid_feed        uniqueidentifier null,
    shard_column     nvarchar(128) null,
    ulid_column      nvarchar(128) null
);
GO

-- Changes ---------------------------------------------------------------------------------------

create sequence changefeed.change_id as bigint start with 1000000000000000 increment by 1
    cache 1000; --@sqlserver
    --@babelfish cache 1;
GO

create table changefeed.change (
    feed_id                smallint not null,
    shard                  smallint not null,
    change_id              bigint not null,
    change_sequence_number bigint null,
    constraint pk_change primary key (feed_id, shard, change_id)
        with (data_compression = page) --@sqlserver
    -- This name is what somebody reads whose insert is refused.
    , constraint [changefeed: this feed has no such shard] foreign key (feed_id, shard) --@sqlserver
        references changefeed.shard (feed_id, shard) on delete cascade --@sqlserver
);
alter table changefeed.change set (lock_escalation = disable); --@sqlserver
-- With the column that it is filtered by: SQL Server looks at it again, and would go to the row for it.
-- No page locks: a sweep passes by what is locked, and would pass by every change of a page that
-- somebody reorganizes, also by those that are committed.
create unique index ix_needs_seqnum on changefeed.change (feed_id, shard, change_id)
    include (change_sequence_number)
    where change_sequence_number is null
    with (allow_page_locks = off) --@sqlserver
    ;
create unique index ix_seqnum on changefeed.change (feed_id, shard, change_sequence_number)
    include (change_id)
    where change_sequence_number is not null;
GO

create table changefeed.backfill (
    feed_id     smallint not null constraint pk_backfill primary key
        constraint fk_backfill_feed references changefeed.feed (feed_id) on delete cascade --@sqlserver
    ,
    -- The primary key of the last row done, as a JSON array of texts.
    last_key    nvarchar(max) null,
    done        bigint not null constraint df_backfill_done default 0,
    total       bigint not null,
    finished_at datetime2(3) null
);
GO

-- A number given by hand is for data older than the feed. One that the sweep will want to give
-- itself must not be taken.
create trigger changefeed.change_insert on changefeed.change after insert as
begin
    --@babelfish if exists (select 1 from inserted i where not exists (select 1 from changefeed.shard s where s.feed_id = i.feed_id and s.shard = i.shard))
    --@babelfish     throw 55303, 'changefeed: this feed has no such shard', 1;
    -- What is committed now, whatever the snapshot of the writer's transaction: readers of a closed shard have gone.
    -- FORCESEEK, because a scan would wait for another feed whose shards are being closed.
    if exists (select 1 from (select distinct n.feed_id, n.shard from inserted n where n.change_sequence_number is null) i
               join changefeed.shard s with (readcommittedlock, forceseek (ix_closed (feed_id, shard))) --@sqlserver
               --@babelfish join changefeed.shard s
               on s.feed_id = i.feed_id and s.shard = i.shard
               where s.closed = 1)
        throw 55304, 'changefeed: this shard is closed; the feed goes on in the shards of the next generation, see changefeed.shard', 1;
    if not exists (select 1 from inserted where change_sequence_number is not null) return;
    set nocount on;
    -- A backfill has marked out its numbers before it gives them.
    if exists (select 1 from inserted i
               join changefeed.backfill b on b.feed_id = i.feed_id
               join changefeed.shard s on s.feed_id = i.feed_id and s.shard = i.shard
               where b.finished_at is null
                 and i.change_sequence_number > isnull(s.backfilled_to, 0))
        throw 55301, 'changefeed: a backfill of this feed is at work; insert old data before it or after it', 1;
    if exists (select 1 from inserted i
               join changefeed.shard s on s.feed_id = i.feed_id and s.shard = i.shard
               where i.change_sequence_number > isnull(s.start, s.last_change_sequence_number)
                  or i.change_sequence_number <= s.trimmed_to)
        throw 55302, 'changefeed: numbers given by hand must be above what was trimmed and not above the start of the shard; leave the number out for a live change', 1;
end;
GO
