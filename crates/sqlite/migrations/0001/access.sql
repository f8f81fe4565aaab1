-- Who may ask, and who answers.

-- Bearer tokens of the HTTP interface. What is kept of a secret is its SHA-256.
create table changefeed_access_token (
  token_id   text    not null primary key
             check (length(token_id) = 12 and token_id not glob '*[^a-z0-9]*'),
  name       text    not null check (name <> '' and name not glob '*[^a-zA-Z0-9_-]*'),
  digest     blob    not null check (length(digest) = 32),
  -- What it allows, with spaces in between: read:FEED, read, operate, administer.
  scopes     text    not null check (scopes <> ''),
  created_at integer not null, -- milliseconds since 1970
  expires_at integer,
  -- A token that was taken back stays: as long as there was one, nobody gets in without.
  revoked_at integer
) strict, without rowid;

-- Instances of `changefeed serve`, for whoever wants to see all of them. Nothing depends on it.
create table changefeed_instance (
  name       text    not null primary key,
  -- sweep, deliver, watch, push, http, with spaces in between.
  roles      text    not null,
  -- Where its HTTP server listens.
  address    text,
  version    text    not null,
  -- What it has done since it was started, as JSON.
  tallies    text    not null default '{}',
  started_at integer not null, -- milliseconds since 1970
  seen_at    integer not null
) strict, without rowid;
