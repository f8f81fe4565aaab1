select t.token_id::text, t.name::text, t.digest, t.scopes,
       to_char(t.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at,
       to_char(t.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as expires_at,
       coalesce(t.expires_at <= clock_timestamp(), false) as expired,
       to_char(t.revoked_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as revoked_at
from changefeed.access_token t
order by t.created_at, t.token_id
