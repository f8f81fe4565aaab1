-- Captures whatever a statement has inserted or deleted, at once. Runs with our rights and with
-- settings of ours, so that neither the writer's rights nor its session leak into an event.
create or replace function changefeed.{function}() returns trigger
language plpgsql security definer {settings} as {quote}
declare
    known boolean;
    kept  text[];
begin
    begin
        -- In a statement of its own: whatever comes next may not even be parsed when a column is
        -- not what it was.
        select {known} into known from changed c limit 1;
    exception when others then
        known := false;
    end;
    if known then
        if tg_op = 'INSERT' then
            {insert};
        else
            {delete};
        end if;
    -- Null if nothing has changed.
    elsif not known then
        begin
            kept := changefeed.shape_values(null);
            execute changefeed.event_statement({plan}, tg_relid, left(tg_op, 1)::"char");
            kept := changefeed.shape_values(kept);
        exception when others then
            -- Whatever it is, the write is not to suffer for it, and nothing is lost: rows whose
            -- values cannot be told apart are one text each.
            begin
                raise warning 'changefeed: a % is captured as texts: %', tg_op, sqlerrm;
                kept := changefeed.shape_values(null);
                execute changefeed.event_statement({plan}, null, left(tg_op, 1)::"char");
                kept := changefeed.shape_values(kept);
            exception when others then
                insert into changefeed.event_gap (trigger_id, what)
                values ({trigger_id}, tg_op || ' that could not be captured (' || sqlerrm || ')');
            end;
        end;
    end if;
    return null;
end {quote};

revoke all on function changefeed.{function}() from public;
