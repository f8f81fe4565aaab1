    if exists (select 1 from inserted) and exists (select 1 from deleted)
    begin
        {count_moved}
        insert into changefeed.event
            (trigger_id, op, old, new, session_variables, trace_context, order_key, feed_id, shard, due_at)
        {output}
        select {id}, 'U', {old}, {new}, @variables, @trace, {order_key}, {feed}, {shard}, @due
        from inserted i join deleted d on {same_key}
        -- Whether the values differ, not whether they are equal to some collation.
        where exists (select {old_listened} except select {new_listened}){wanted};
        {moved}
    end;
