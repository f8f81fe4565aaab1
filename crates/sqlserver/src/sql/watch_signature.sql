-- What a table is: where its name leads, and its columns.
select convert(nvarchar(max), concat(isnull(object_id({name}), 0), N';', (
    select string_agg(convert(nvarchar(max), concat(c.column_id, N':', c.name, N':', c.user_type_id, N':', c.max_length,
                                                    N':', c.precision, N':', c.scale)), N',')
           within group (order by c.column_id)
    from sys.columns c where c.object_id = {table_id})))
