-- Consumers -------------------------------------------------------------------------------------

create table changefeed.consumer (
    name       varchar(100) not null,
    feed_id    smallint not null,
    shard      smallint not null,
    -- Text, because other kinds of feeds have other kinds of cursors.
    [cursor]   varchar(26) not null,
    updated_at datetime2(3) not null constraint df_consumer_updated default sysutcdatetime(),
    constraint pk_consumer primary key (name, feed_id, shard),
    constraint ck_consumer_name check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0),
    constraint ck_consumer_cursor check ([cursor] <> '' and patindex('%[^0-9A-Z]%', [cursor] collate Latin1_General_BIN2) = 0)
    , constraint fk_consumer_shard foreign key (feed_id, shard) --@sqlserver
        references changefeed.shard (feed_id, shard) on delete cascade --@sqlserver
);
GO
--@babelfish create trigger changefeed.consumer_insert on changefeed.consumer after insert as
--@babelfish begin
--@babelfish     set nocount on;
--@babelfish     if exists (select 1 from inserted i where not exists (select 1 from changefeed.shard s where s.feed_id = i.feed_id and s.shard = i.shard))
--@babelfish         throw 55303, 'changefeed: this feed has no such shard', 1;
--@babelfish end;
GO
--@babelfish create trigger changefeed.shard_delete on changefeed.shard after delete as
--@babelfish begin
--@babelfish     set nocount on;
--@babelfish     delete c from changefeed.change c join deleted d on d.feed_id = c.feed_id and d.shard = c.shard;
--@babelfish     delete p from changefeed.progress p join deleted d on d.feed_id = p.feed_id and d.shard = p.shard;
--@babelfish     delete c from changefeed.consumer c join deleted d on d.feed_id = c.feed_id and d.shard = c.shard;
--@babelfish end;
GO

-- Subscriptions ---------------------------------------------------------------------------------

-- The changes of a feed are pushed to a sink. The position is the cursor of the consumer of the same name.
create table changefeed.subscription (
    name       varchar(100) not null constraint pk_subscription primary key,
    feed_id    smallint not null,
    -- What it pushes where, as JSON.
    definition nvarchar(max) not null,
    -- Why it is paused.
    paused     nvarchar(max) null,
    created_at datetime2(3) not null constraint df_subscription_created default sysutcdatetime(),
    constraint ck_subscription_name
        check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0)
);
GO

-- Where each of its shards stands. Whoever works on one holds the lease push/NAME/SHARD. No foreign keys: dropping a
-- feed or a subscription removes the rows in its transaction.
create table changefeed.subscription_shard (
    name       varchar(100) not null,
    shard      smallint not null,
    -- The lease's generation: an older one cannot move the position.
    generation bigint not null constraint df_subscription_shard_generation default 0,
    -- Raised when a person has it begin elsewhere; part of message ids.
    epoch      int not null constraint df_subscription_shard_epoch default 0,
    -- What the sink held of this epoch when the position was stored.
    held       varchar(26) null,
    -- Why it was stopped.
    stopped    nvarchar(max) null,
    sent       bigint not null constraint df_subscription_shard_sent default 0,
    lost       bigint not null constraint df_subscription_shard_lost default 0,
    parked     bigint not null constraint df_subscription_shard_parked default 0,
    -- Since when its sink takes nothing, and why.
    failing_since datetime2(3) null,
    failure    nvarchar(max) null,
    constraint pk_subscription_shard primary key (name, shard)
);
GO

-- Changes that a sink refused and that were left out.
create table changefeed.subscription_parked (
    name       varchar(100) not null,
    shard      smallint not null,
    epoch      int not null,
    [cursor]   varchar(26) not null,
    reason     nvarchar(max) not null,
    parked_at  datetime2(3) not null constraint df_subscription_parked_at default sysutcdatetime(),
    constraint pk_subscription_parked primary key (name, shard, epoch, [cursor])
);
GO
