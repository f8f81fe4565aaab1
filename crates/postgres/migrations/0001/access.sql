-- changefeed: who may ask, and who answers, on PostgreSQL.

-- Bearer tokens of the HTTP interface. What is kept of a secret is its SHA-256.
create table changefeed.access_token (
    token_id   varchar(12) primary key check (token_id ~ '^[a-z0-9]{12}$'),
    name       varchar(100) not null check (name ~ '^[a-zA-Z0-9_-]+$'),
    digest     bytea not null check (octet_length(digest) = 32),
    -- What it allows, with spaces in between: read:FEED, read, operate, administer.
    scopes     text not null check (scopes <> ''),
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    -- A token that was taken back stays: as long as there was one, nobody gets in without.
    revoked_at timestamptz
);

-- Instances of `changefeed serve`, for whoever wants to see all of them. Nothing depends on it.
create table changefeed.instance (
    name       text primary key,
    -- sweep, deliver, watch, push, http, with spaces in between.
    roles      text not null,
    -- Where its HTTP server listens.
    address    text,
    version    text not null,
    -- What it has done since it was started, as JSON.
    tallies    text not null default '{}',
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp()
);
