-- What this user may do with what is installed, right by right; null where the server does not say.
select convert(int, has_perms_by_name(N'changefeed', N'SCHEMA', N'SELECT')),
       convert(int, has_perms_by_name(N'changefeed', N'SCHEMA', N'INSERT')),
       convert(int, has_perms_by_name(N'changefeed', N'SCHEMA', N'UPDATE')),
       convert(int, has_perms_by_name(N'changefeed', N'SCHEMA', N'DELETE')),
       convert(int, has_perms_by_name(N'changefeed', N'SCHEMA', N'EXECUTE')),
       convert(int, has_perms_by_name(N'changefeed.change', N'OBJECT', N'SELECT')),
       convert(int, has_perms_by_name(N'changefeed.change', N'OBJECT', N'INSERT')),
       convert(int, 0) --@sqlserver
       -- It says nothing true of rights on a schema.
       --@babelfish convert(int, is_member(N'changefeed_admin'))
