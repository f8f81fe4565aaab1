select token_id, name, digest, scopes,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch'),
       coalesce(expires_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer), 0),
       strftime('%Y-%m-%dT%H:%M:%fZ', revoked_at / 1000.0, 'unixepoch')
  from changefeed_access_token
 order by created_at, token_id
