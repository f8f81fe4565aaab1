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
    kept      text[];
    done      boolean;
begin
    begin
        -- Before any value is used: one of another type may bring somebody's own functions.
        if not ({known}) then
            raise exception 'altered';
        end if;
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
    exception when others then
        begin
            kept := changefeed.shape_values(null);
            execute changefeed.event_row({plan}, tg_relid, tg_op)
            into before, after, differs, key, to_shard using old, new;
            kept := changefeed.shape_values(kept);
        exception when others then
            -- Whatever it is, the write is not to suffer for it, and nothing is lost: a row whose
            -- values cannot be told apart is one text.
            begin
                raise warning 'changefeed: a % is captured as a text: %', tg_op, sqlerrm;
                kept := changefeed.shape_values(null);
                before := case when tg_op <> 'INSERT' then
                               json_build_object('changefeed_record', format('%s', old)) end;
                after := case when tg_op <> 'DELETE' then
                              json_build_object('changefeed_record', format('%s', new)) end;
                kept := changefeed.shape_values(kept);
                differs := true;
                key := 0;
                to_shard := 0;
            exception when others then
                insert into changefeed.event_gap (trigger_id, what)
                values ({trigger_id}, tg_op || ' that could not be captured (' || sqlerrm || ')');
                return null;
            end;
        end;
    end;
    if not differs then
        return null;
    end if;
    if pg_trigger_depth() > 1 or current_setting('changefeed.nested', true) <> '' then
        id := changefeed.event_place({trigger_id}, tg_relid, old.ctid, old.xmin, new.ctid, to_shard);
    else
        id := nextval('changefeed.change_id');
    end if;
    insert into changefeed.event
        (change_id, trigger_id, feed_id, op, old, new, session_variables, trace_context, due_at, order_key)
    values (id, {trigger_id}, {feed}, left(tg_op, 1)::"char", before, after,
            coalesce(nullif(current_setting('changefeed.session_variables', true), ''),
                     nullif(current_setting('hasura.user', true), '')),
            coalesce(nullif(current_setting('changefeed.trace_context', true), ''),
                     nullif(current_setting('hasura.tracecontext', true), '')),
            {due}, key);
    {publish}
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
