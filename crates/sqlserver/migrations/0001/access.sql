-- changefeed: who may ask, and who answers, on SQL Server 2017 and later, Azure SQL, and
-- Babelfish for PostgreSQL.

-- Bearer tokens of the HTTP interface. What is kept of a secret is its SHA-256.
create table changefeed.access_token (
    token_id   varchar(12) not null constraint pk_access_token primary key,
    name       varchar(100) not null,
    digest     binary(32) not null,
    -- What it allows, with spaces in between: read:FEED, read, operate, administer.
    scopes     nvarchar(max) not null,
    created_at datetime2(3) not null constraint df_access_token_created default sysutcdatetime(),
    expires_at datetime2(3) null,
    -- A token that was taken back stays: as long as there was one, nobody gets in without.
    revoked_at datetime2(3) null,
    constraint ck_access_token_id
        check (len(token_id) = 12 and patindex('%[^a-z0-9]%', token_id collate Latin1_General_BIN2) = 0),
    constraint ck_access_token_name
        check (name <> '' and patindex('%[^a-zA-Z0-9_-]%', name collate Latin1_General_BIN2) = 0),
    constraint ck_access_token_scopes check (scopes <> N'')
);
GO

-- Instances of `changefeed serve`, for whoever wants to see all of them. Nothing depends on it.
create table changefeed.instance (
    name       nvarchar(200) not null constraint pk_instance primary key,
    -- sweep, deliver, watch, push, http, with spaces in between.
    roles      nvarchar(200) not null,
    -- Where its HTTP server listens.
    address    nvarchar(300) null,
    version    nvarchar(100) not null,
    -- What it has done since it was started, as JSON.
    tallies    nvarchar(max) not null constraint df_instance_tallies default N'{}',
    started_at datetime2(3) not null constraint df_instance_started default sysutcdatetime(),
    seen_at    datetime2(3) not null constraint df_instance_seen default sysutcdatetime()
);
GO
