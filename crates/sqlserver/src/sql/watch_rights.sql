-- What grants the rights that the user lacks, of those that whoever makes a watch needs. None where the server
-- does not say.
select concat(N'grant ', r.name, N' to ', quotename(user_name()))
from (values
    (1, N'create table', has_perms_by_name(null, N'DATABASE', N'CREATE TABLE')),
    (2, N'create function', has_perms_by_name(null, N'DATABASE', N'CREATE FUNCTION')),
    (3, N'create view', has_perms_by_name(null, N'DATABASE', N'CREATE VIEW')),
    (4, N'alter on schema::changefeed', has_perms_by_name(N'changefeed', N'SCHEMA', N'ALTER')),
    (5, N'references on schema::changefeed', has_perms_by_name(N'changefeed', N'SCHEMA', N'REFERENCES'))
) r (place, name, has)
where r.has = 0
order by r.place
