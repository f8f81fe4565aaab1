-- Makes all rows of a table that is about to be truncated deleted ones. A failure of it is a warning:
-- the application's statement goes on.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set row_security = off set constraint_exclusion = off
set datestyle = 'ISO, YMD' set timezone = 'UTC' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set lc_monetary = 'C' as {quote}
declare
    key     text;
    problem text;
begin
    -- Reading the table could run code of its owner with our rights: see unreadable(). What that asks the
    -- catalogue for can be out of date in transactions with a snapshot of their own, which also do not show
    -- all rows that are truncated. The transaction is told, and, by a change without a key, whoever moves
    -- changes.
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        problem := format('its rows cannot be read in a transaction that is %s',
                          current_setting('transaction_isolation'));
    else
        select u.problem into problem from changefeed.unreadable(tg_relid) u;
    end if;
    if problem is not null then
        raise warning 'changefeed: the rows of % are truncated without a trace: %',
            tg_relid::regclass, problem;
        insert into changefeed.{log} (_changefeed_operation) values (4);
        return null;
    end if;
    select string_agg(format('pg_catalog.format(''%%s'', changefeed_row.%I)', n.name), ', '
                      order by n.place)
    into key
    from unnest(changefeed.column_names({source}, {places})) with ordinality n(name, place);
    -- Tables that inherit from it have keys of their own. A sample of everything is everything, and
    -- only of tables there are samples: whoever owns the schema may rename it at this moment, and put
    -- a view with functions of theirs behind the name.
    execute format('insert into changefeed.{log} (_changefeed_operation, _changefeed_raw) '
                   'select 2, pg_catalog.jsonb_build_array(%s) from %s %s changefeed_row '
                   'tablesample pg_catalog.bernoulli (100)',
                   key, '{only}', tg_relid::regclass);
    return null;
exception when others then
    raise warning 'changefeed: the rows of % are truncated without a trace: %',
        tg_relid::regclass, sqlerrm;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
select changefeed.hand_over('{function}');
