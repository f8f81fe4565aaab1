-- Rows whose key was changed to one that was not there. A single one is known to be the one
        -- that is missing; of several nobody knows which was which, and the row before is left out.
        if @moved > 0
            insert into changefeed.event
                (trigger_id, op, old, new, session_variables, trace_context, order_key, feed_id, shard, due_at)
            {output}
            select {id}, 'U', case when @moved = 1 then {old} end, {new}, @variables, @trace, {order_key}, {feed}, {shard}, @due
            from inserted i
            left join deleted d on @moved = 1 and not exists (select 1 from inserted k where {same_old_key})
            where not exists (select 1 from deleted k where {same_new_key})
              and (@moved > 1 or exists (select {old_listened} except select {new_listened})){wanted};
