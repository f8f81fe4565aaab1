select t.token_id, t.name, t.digest, t.scopes,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.created_at / 1000.0, 'unixepoch') as created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.expires_at / 1000.0, 'unixepoch') as expires_at,
       coalesce(t.expires_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer), 0) as expired,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.revoked_at / 1000.0, 'unixepoch') as revoked_at
  from changefeed_access_token t
 order by t.created_at, t.token_id
