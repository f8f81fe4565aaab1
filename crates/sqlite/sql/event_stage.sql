-- Notes the rows that this statement may remove by REPLACE, for which no delete trigger fires.
create trigger {trigger} before {event} on {table}
when {any_conflict}
begin
  delete from changefeed_event_staged where trigger_id = {id};
  insert into changefeed_event_staged (trigger_id, {keys}, old, order_key, shard)
  select {id}, {identity}, {old}, {order_key}, {shard}
    from {table} as changefeed_row
   where ({conflicts}){wanted};
end
