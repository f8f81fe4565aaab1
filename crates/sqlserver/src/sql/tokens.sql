-- The separator of date and time is a blank on Babelfish, whatever the style.
select convert(nvarchar(12), t.token_id) as token_id, convert(nvarchar(100), t.name) as name, t.digest, t.scopes,
       stuff(convert(varchar(40), t.created_at, 126), 11, 1, 'T') + N'Z' as created_at,
       stuff(convert(varchar(40), t.expires_at, 126), 11, 1, 'T') + N'Z' as expires_at,
       convert(bit, case when t.expires_at <= sysutcdatetime() then 1 else 0 end) as expired,
       stuff(convert(varchar(40), t.revoked_at, 126), 11, 1, 'T') + N'Z' as revoked_at
from changefeed.access_token t
order by t.created_at, t.token_id
