-- For a feed the primary key is not among them: a row that is replaced through it is a change of
-- its key.
select l.name, l.partial, m.sql
  from pragma_index_list(?1, 'main') l
  left join sqlite_master m on m.type = 'index' and m.name = l.name
 where l."unique" and (?2 or l.origin <> 'pk')
 order by l.seq
