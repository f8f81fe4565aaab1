-- Consumers -------------------------------------------------------------------------------------

create table changefeed.consumer (
    name       varchar(100) not null check (name ~ '^[a-zA-Z0-9_-]+$'),
    feed_id    smallint not null,
    shard      smallint not null,
    -- Text, because other kinds of feeds have other kinds of cursors.
    cursor     text not null check (cursor ~ '^[0-9]{1,18}$'),
    updated_at timestamptz not null default clock_timestamp(),
    primary key (name, feed_id, shard),
    foreign key (feed_id, shard) references changefeed.shard_definition on delete cascade
);

create function changefeed.consumer_touch() returns trigger
language plpgsql as $$
begin
    new.updated_at := pg_catalog.clock_timestamp();
    return new;
end $$;

create trigger consumer_touch before update on changefeed.consumer
for each row execute function changefeed.consumer_touch();

-- Subscriptions ---------------------------------------------------------------------------------

-- The changes of a feed are pushed to a sink. The position is the cursor of the consumer of the same name.
create table changefeed.subscription (
    name       varchar(100) primary key check (name ~ '^[a-zA-Z0-9_-]+$'),
    feed_id    smallint not null references changefeed.feed on delete cascade,
    -- What it pushes where, as JSON.
    definition text not null,
    -- Why it is paused.
    paused     text,
    created_at timestamptz not null default clock_timestamp()
);

-- Where each of its shards stands. Whoever works on one holds the lease push/NAME/SHARD.
create table changefeed.subscription_shard (
    name       varchar(100) not null references changefeed.subscription on delete cascade,
    shard      smallint not null,
    -- The lease's generation: an older one cannot move the position.
    generation bigint not null default 0,
    -- Raised when a person has it begin elsewhere; part of message ids.
    epoch      integer not null default 0,
    -- What the sink held of this epoch when the position was stored.
    held       text check (held ~ '^[0-9A-Z]{1,26}$'),
    -- Why it was stopped.
    stopped    text,
    sent       bigint not null default 0,
    lost       bigint not null default 0,
    parked     bigint not null default 0,
    -- Since when its sink takes nothing, and why.
    failing_since timestamptz,
    failure    text,
    primary key (name, shard)
);

-- Changes that a sink refused and that were left out.
create table changefeed.subscription_parked (
    name       varchar(100) not null references changefeed.subscription on delete cascade,
    shard      smallint not null,
    epoch      integer not null,
    cursor     text not null check (cursor ~ '^[0-9A-Z]{1,26}$'),
    reason     text not null,
    parked_at  timestamptz not null default clock_timestamp(),
    primary key (name, shard, epoch, cursor)
);

-- Nothing of this is for everybody; `docs/postgres.md` has the grants for writers, readers and
-- sweepers.
revoke all on all functions in schema changefeed from public;
revoke all on all procedures in schema changefeed from public;
