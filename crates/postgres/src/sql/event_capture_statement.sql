-- Captures whatever a statement has inserted or deleted, at once. Runs with our rights and with
-- settings of ours, so that neither the writer's rights nor its session leak into an event.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer {settings} as {quote}
begin
    if (select string_agg(a.attname || ':' || a.atttypid, ',')
        from (select attname, atttypid from pg_attribute
              where attrelid = tg_relid and attnum > 0 and not attisdropped
              order by attnum offset 0) a) = any ({signatures}) then
        if tg_op = 'INSERT' then
            {insert};
        else
            {delete};
        end if;
    else
        execute changefeed.event_statement({trigger_id}, tg_relid, left(tg_op, 1)::"char");
    end if;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
