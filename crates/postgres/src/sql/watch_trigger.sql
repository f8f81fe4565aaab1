-- Runs with our rights, so that the table's writers need none on our schema; every name, operator
-- and type is spelt with its schema, so that the writer's search path does not matter.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer as {quote}
declare
    {variables}
    old_raw pg_catalog.jsonb;
    new_raw pg_catalog.jsonb;
    changed pg_catalog.text;
    before  pg_catalog.text;
    by_whom pg_catalog.text := pg_catalog.current_setting('changefeed.watch', true);
begin
    -- Somebody has deleted it, or has taken a right from whoever made this: that is no reason to fail
    -- the application's write.
    if (case when pg_catalog.has_schema_privilege('changefeed', 'usage') then
            pg_catalog.has_table_privilege(
                pg_catalog.to_regclass('changefeed.{log}')::pg_catalog.oid, 'insert')
        end) is not true then
        raise warning 'changefeed: a change of % is not noted: changefeed.{log} was deleted, or % may not write to it',
            tg_relid::pg_catalog.regclass, current_user;
        return null;
    end if;
    begin
        -- Before anything is assigned: an assignment of another type would be a cast, which may be
        -- anybody's function, and would run with our rights.
        if tg_op operator(pg_catalog.<>) 'INSERT' then
            if {old_altered} then
                raise exception 'altered';
            end if;
            {take_old}
        end if;
        if tg_op operator(pg_catalog.<>) 'DELETE' then
            if {new_altered} then
                raise exception 'altered';
            end if;
            {take_new}
        end if;
    exception when others then
        -- A key column was renamed, dropped or got another type after this trigger was made. The
        -- application's write must not fail for that: find the key by the numbers of its columns.
        {forget}
        begin
            if tg_op operator(pg_catalog.<>) 'INSERT' then
                old_raw := changefeed.row_key({source}, {places}, old);
            end if;
            if tg_op operator(pg_catalog.<>) 'DELETE' then
                new_raw := changefeed.row_key({source}, {places}, new);
            end if;
        exception when others then
            raise warning 'changefeed: a change of % is not noted: %',
                tg_relid::pg_catalog.regclass, sqlerrm;
        end;
    end;
    if tg_op operator(pg_catalog.=) 'INSERT' then
        insert into changefeed.{log} ({keys}, _changefeed_operation, _changefeed_raw, _changefeed_before, _changefeed_by)
        values ({new}, 0, new_raw, {no_row}, by_whom);
        return null;
    end if;
    {note_before}
    if tg_op operator(pg_catalog.=) 'DELETE' then
        insert into changefeed.{log} ({keys}, _changefeed_operation, _changefeed_raw, _changefeed_before, _changefeed_by)
        values ({old}, 2, old_raw, before, by_whom);
    -- By their bytes: the equality of somebody's own type is somebody's own function.
    elsif pg_catalog.record_image_eq(row({old}, old_raw), row({new}, new_raw)) then
        {note_columns}
        insert into changefeed.{log}
            ({keys}, _changefeed_operation, _changefeed_raw, _changefeed_columns, _changefeed_before, _changefeed_by)
        values ({new}, 1, new_raw, changed, before, by_whom);
    else
        -- A row that moved to another key is gone from the old one.
        insert into changefeed.{log} ({keys}, _changefeed_operation, _changefeed_raw, _changefeed_before, _changefeed_by)
        values ({old}, 2, old_raw, before, by_whom), ({new}, 0, new_raw, {no_row}, by_whom);
    end if;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
select changefeed.hand_over('{function}');
