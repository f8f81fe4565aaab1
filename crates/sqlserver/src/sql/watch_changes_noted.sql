-- What our trigger has noted and is committed: what somebody has locked is not. Nobody but the holder of
-- the table's lock deletes here.
    insert into @scanned ({k}, place, operation, [columns])
    select top ({chunk}) {l_keys}, l._changefeed_order, l._changefeed_operation,
           case when l._changefeed_columns is not null then concat(',', (
               select string_agg(convert(varchar(max), c.column_id), ',') from sys.columns c
               where c.object_id = {table_id}
                 and convert(int, substring(l._changefeed_columns, (c.column_id - 1) / 8 + 1, 1))
                     & power(2, (c.column_id - 1) % 8) <> 0), ',') end
    from changefeed.{log} l with (readcommittedlock, readpast, updlock, rowlock)
    order by l._changefeed_order;
    if @@rowcount > 0
        -- Row by row: a search through the whole log would wait for whoever is writing to the table.
        delete l from @scanned s
        join changefeed.{log} l with (forceseek, rowlock) on l._changefeed_order = s.place
        option (loop join, force order) --@sqlserver
        ;
