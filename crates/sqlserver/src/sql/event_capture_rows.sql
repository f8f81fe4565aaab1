    if {when}
        insert into changefeed.event
            (trigger_id, op, {image}, session_variables, trace_context, order_key, feed_id, shard, due_at)
        {output}
        select {id}, '{op}', {row}, @variables, @trace, {order_key}, {feed}, {shard}, @due
        from {rows} {alias}
        {wanted};
