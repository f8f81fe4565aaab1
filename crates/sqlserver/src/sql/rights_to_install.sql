-- What this user may create; null where the server does not say.
select convert(int, has_perms_by_name(null, N'DATABASE', N'CREATE SCHEMA')),
       convert(int, has_perms_by_name(null, N'DATABASE', N'CREATE TABLE')),
       convert(int, has_perms_by_name(null, N'DATABASE', N'CREATE PROCEDURE')),
       convert(int, has_perms_by_name(null, N'DATABASE', N'CREATE FUNCTION')),
       convert(int, has_perms_by_name(null, N'DATABASE', N'CREATE VIEW')),
       convert(int, has_perms_by_name(null, N'DATABASE', N'CREATE ROLE'))
