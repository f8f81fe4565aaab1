-- The statements that remove everything of ours, in an order in which nothing refers to what is
-- gone. Triggers of ours on the application's tables are known by their names.
select s.[drop] from (
    select 1 as place, concat(N'drop trigger ', quotename(schema_name(o.schema_id)), N'.', quotename(o.name)) as [drop], o.name
    from sys.triggers t join sys.objects o on o.object_id = t.object_id
    where schema_name(o.schema_id) = N'changefeed' or o.name like N'changefeed[_]%'
    union all
    select 2, concat(N'drop view changefeed.', quotename(o.name)), o.name
    from sys.objects o where o.schema_id = schema_id(N'changefeed') and o.type = 'V'
    union all
    select 3, concat(N'drop procedure changefeed.', quotename(o.name)), o.name
    from sys.objects o where o.schema_id = schema_id(N'changefeed') and o.type = 'P'
    union all
    -- A function that others use may be bound to them.
    select 4, concat(N'drop function changefeed.', quotename(o.name)), o.name
    from sys.objects o where o.schema_id = schema_id(N'changefeed') and o.type in ('FN', 'IF', 'TF')
    union all
    select 5, concat(N'alter table changefeed.', quotename(p.name), N' drop constraint ', quotename(k.name)), k.name
    from sys.foreign_keys k join sys.objects p on p.object_id = k.parent_object_id
    where p.schema_id = schema_id(N'changefeed')
    union all
    select 6, concat(N'drop table changefeed.', quotename(o.name)), o.name
    from sys.objects o where o.schema_id = schema_id(N'changefeed') and o.type = 'U'
    union all
    select 7, concat(N'drop sequence changefeed.', quotename(o.name)), o.name
    from sys.objects o where o.schema_id = schema_id(N'changefeed') and o.type = 'SO'
    union all
    -- A role that has members cannot be dropped.
    select 9, concat(N'alter role ', quotename(r.name), N' drop member ', quotename(p.name)), r.name
    from sys.database_role_members m
    join sys.database_principals r on r.principal_id = m.role_principal_id
    join sys.database_principals p on p.principal_id = m.member_principal_id
    where r.name in (N'changefeed_reader', N'changefeed_writer', N'changefeed_admin')
    union all
    select 10, concat(N'drop role ', quotename(p.name)), p.name
    from sys.database_principals p
    where p.type = 'R' and p.name in (N'changefeed_reader', N'changefeed_writer', N'changefeed_admin')
    union all
    select 8, N'drop schema changefeed', N'changefeed' where schema_id(N'changefeed') is not null
) s
order by s.place, s.name
