-- The server's version, its clock, and settings that break what we promise. Commits of ours ask for
-- synchronous_commit themselves.
select current_setting('server_version'),
       current_setting('server_version_num')::integer,
       (extract(epoch from clock_timestamp()) * 1000)::bigint,
       array(select name from pg_settings
             where name in ('fsync', 'full_page_writes') and setting = 'off' order by name)
