-- The columns of a table: how many bytes each takes at most, and in which way those sort and compare that do
-- so in another way than the database does.
select convert(int, c.column_id),
       case when c.collation_name <> convert(nvarchar(128), databasepropertyex(db_name(), 'Collation'))
            then convert(nvarchar(128), c.collation_name) end,
       convert(int, c.max_length)
from sys.columns c
where c.object_id = @P1
