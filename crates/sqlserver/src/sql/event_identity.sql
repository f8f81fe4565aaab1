-- The number of an identity column that is alone in a unique index.
select convert(int, c.column_id)
from sys.columns c
where c.object_id = @P1 and c.is_identity = 1
  and exists (select 1 from sys.indexes x
              join sys.index_columns k on k.object_id = x.object_id and k.index_id = x.index_id
              where x.object_id = c.object_id and x.is_unique = 1 and x.has_filter = 0
                and x.is_disabled = 0 and k.column_id = c.column_id and k.key_ordinal = 1
                and not exists (select 1 from sys.index_columns m
                                where m.object_id = x.object_id and m.index_id = x.index_id
                                  and m.key_ordinal > 1))
