-- Whether our record of migrations is there; whether there is a schema of our name that this user sees nothing of; and
-- what is in that schema instead, where somebody else has made it: how many things, and those by which the library is
-- known that this program comes from.
select object_id(N'changefeed.schema_version'),
       convert(bit, case when schema_id(N'changefeed') is not null
                          and has_perms_by_name(N'changefeed', N'SCHEMA', N'SELECT') = 0 then 1 else 0 end),
       convert(nvarchar(128), user_name()),
       convert(bit, case when schema_id(N'changefeed') is not null then 1 else 0 end),
       (select count(*) from sys.objects o where o.schema_id = schema_id(N'changefeed') and o.parent_object_id = 0),
       convert(bit, case when object_id(N'changefeed.sweep_loop') is not null and object_id(N'changefeed.change') is not null
                           or object_id(N'changefeed.setup_feed') is not null
                           or object_id(N'changefeed.shard_ulid') is not null then 1 else 0 end)
