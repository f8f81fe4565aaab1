-- The columns of a table that sort and compare in another way than the database does.
select convert(int, c.column_id), convert(nvarchar(128), c.collation_name)
from sys.columns c
where c.object_id = @P1 and c.collation_name is not null
  and c.collation_name <> convert(nvarchar(128), databasepropertyex(db_name(), 'Collation'))
