-- Runs with our rights, so that the table's writers need none on our schema; every name is
-- spelt with its schema, so that the writer's search path does not matter.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer {settings} as {quote}
declare
    old_key   pg_catalog.jsonb;
    new_key   pg_catalog.jsonb;
    old_shard pg_catalog.int2;
    new_shard pg_catalog.int2;
    before    pg_catalog.json;
    after     pg_catalog.json;
    done      pg_catalog.bool;
begin
    if tg_op operator(pg_catalog.=) 'TRUNCATE' then
        for shard in {first_shard} .. {last_shard} loop
            done := changefeed.publish_row({feed}::pg_catalog.int2, shard::pg_catalog.int2, 'T'::pg_catalog."char", null);
        end loop;
        return null;
    end if;
    begin
        -- Before any value is used: how a value of another type is written may depend on the
        -- writer's settings, or be somebody's own function.
        if not ({known}) then
            raise exception 'altered';
        end if;
        if tg_op operator(pg_catalog.<>) 'INSERT' then
            old_key := {old_key};
            old_shard := {old_shard};
            before := {before};
        end if;
        if tg_op operator(pg_catalog.<>) 'DELETE' then
            new_key := {new_key};
            new_shard := {new_shard};
            after := {after};
        end if;
    exception when others then
        -- A column was renamed, dropped or got another type after this trigger was made. The
        -- application's write must not fail for that, and its change must not be lost.
        if tg_op operator(pg_catalog.<>) 'INSERT' then
            select p.key, p.shard operator(pg_catalog.+) {first_shard}::pg_catalog.int2 into old_key, old_shard
            from changefeed.row_place(tg_relid, old, {shard_by}) p;
            before := {before_now};
        end if;
        if tg_op operator(pg_catalog.<>) 'DELETE' then
            select p.key, p.shard operator(pg_catalog.+) {first_shard}::pg_catalog.int2 into new_key, new_shard
            from changefeed.row_place(tg_relid, new, {shard_by}) p;
            after := {after_now};
        end if;
    end;
{filter}    -- A row that moved to another key or shard is deleted at the place it left, and inserted at the other.
    if old_key operator(pg_catalog.=) new_key and old_shard operator(pg_catalog.=) new_shard then
        done := changefeed.publish_row({feed}::pg_catalog.int2, new_shard, 'U'::pg_catalog."char", new_key, before, after,
            tg_relid, old.ctid, old.xmin, new.ctid);
        return null;
    end if;
    if old_key is not null then
        done := changefeed.publish_row({feed}::pg_catalog.int2, old_shard, 'D'::pg_catalog."char", old_key, before, null,
            tg_relid, old.ctid, old.xmin, new.ctid);
    end if;
    if new_key is not null then
        done := changefeed.publish_row({feed}::pg_catalog.int2, new_shard, 'I'::pg_catalog."char", new_key, null, after,
            tg_relid, old.ctid, old.xmin, new.ctid);
    end if;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
