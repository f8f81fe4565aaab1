-- Captures one row. Runs with our rights and with settings of ours, so that neither the writer's
-- rights nor its session leak into an event.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer {settings} as {quote}
#variable_conflict use_column
declare
    before    json;
    after     json;
    differs   boolean := true;
    key       bigint;
    to_shard  smallint;
    id        bigint;
begin
    if (select coalesce(string_agg(quote_ident(a.attname) || ':' || a.atttypid, ','), '')
        from (select attname, atttypid from pg_attribute
              where attrelid = tg_relid and attnum > 0 and not attisdropped
              order by attnum offset 0) a) = any ({signatures}) then
        if tg_op = 'INSERT' then
            {condition}
            after := {after};
            key := {new_order_key};
            to_shard := {new_shard};
        elsif tg_op = 'DELETE' then
            {condition}
            before := {before};
            key := {old_order_key};
            to_shard := {old_shard};
        else
            if not ({differs}) then
                return null;
            end if;
            {condition}
            before := {before};
            after := {after};
            key := {new_order_key};
            to_shard := {new_shard};
        end if;
    else
        begin
            execute changefeed.event_row({trigger_id}, tg_relid, tg_op)
            into before, after, differs, key, to_shard using old, new;
        exception when others then
            -- Whatever it is, the write is not to suffer for it; doctor will tell.
            raise warning 'changefeed: a % could not be captured: %', tg_op, sqlerrm;
            insert into changefeed.event_gap (trigger_id, what)
            values ({trigger_id}, tg_op || ' that could not be captured (' || sqlerrm || ')');
            return null;
        end;
        if not differs then
            return null;
        end if;
    end if;
    insert into changefeed.event
        (change_id, trigger_id, op, old, new, session_variables, trace_context, order_key)
    values (nextval('changefeed.change_id'), {trigger_id}, left(tg_op, 1)::"char", before, after,
            nullif(current_setting('changefeed.session_variables', true), ''),
            nullif(current_setting('changefeed.trace_context', true), ''), key)
    returning change_id into id;
    {publish}
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
