-- Remembers that a table was emptied without any event.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $changefeed$
begin
    insert into changefeed.event_gap (trigger_id, what)
    values ({trigger_id}, 'TRUNCATE of ' || tg_relid::regclass);
    return null;
end $changefeed$;

revoke all on function changefeed.{function}() from public;
