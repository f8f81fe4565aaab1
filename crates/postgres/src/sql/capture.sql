-- Runs with our rights, so that the table's writers need none on our schema; every name is
-- spelt with its schema, so that the writer's search path does not matter.
create function changefeed.{function}() returns trigger
language plpgsql security definer {settings} as {quote}
declare
    old_key   pg_catalog.jsonb;
    new_key   pg_catalog.jsonb;
    old_shard pg_catalog.int2;
    new_shard pg_catalog.int2;
begin
    begin
        if tg_op operator(pg_catalog.<>) 'INSERT' then
            old_key := {old_key};
            old_shard := {old_shard};
        end if;
        if tg_op operator(pg_catalog.<>) 'DELETE' then
            new_key := {new_key};
            new_shard := {new_shard};
        end if;
    exception when undefined_column then
        -- A column was renamed or dropped after this trigger was made. The application's write
        -- must not fail for that: find the key by the catalogue, and use shard 0.
        if tg_op operator(pg_catalog.<>) 'INSERT' then
            execute changefeed.key_query(tg_relid) into old_key using old;
            old_shard := 0;
        end if;
        if tg_op operator(pg_catalog.<>) 'DELETE' then
            execute changefeed.key_query(tg_relid) into new_key using new;
            new_shard := 0;
        end if;
    end;
    -- A row that moved to another key or shard is also a change at the place it left.
    if old_key is not null
       and (new_key is null
            or old_key operator(pg_catalog.<>) new_key
            or old_shard operator(pg_catalog.<>) new_shard) then
        perform changefeed.publish_row({feed}::pg_catalog.int2, old_shard, old_key);
    end if;
    if new_key is not null then
        perform changefeed.publish_row({feed}::pg_catalog.int2, new_shard, new_key);
    end if;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;

create trigger {trigger} after insert or update or delete on {table}
for each row execute function changefeed.{function}();
