-- Captures whatever a statement has inserted or deleted, at once. Runs with our rights and with
-- settings of ours, so that neither the writer's rights nor its session leak into an event.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer {settings} as {quote}
begin
    if (select coalesce(string_agg(quote_ident(a.attname) || ':' || a.atttypid, ','), '')
        from (select attname, atttypid from pg_attribute
              where attrelid = tg_relid and attnum > 0 and not attisdropped
              order by attnum offset 0) a) = any ({signatures}) then
        if tg_op = 'INSERT' then
            {insert};
        else
            {delete};
        end if;
    else
        begin
            execute changefeed.event_statement({trigger_id}, tg_relid, left(tg_op, 1)::"char");
        exception when others then
            -- Whatever it is, the write is not to suffer for it; doctor will tell.
            raise warning 'changefeed: a % could not be captured: %', tg_op, sqlerrm;
            insert into changefeed.event_gap (trigger_id, what)
            values ({trigger_id}, tg_op || ' that could not be captured (' || sqlerrm || ')');
        end;
    end if;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
