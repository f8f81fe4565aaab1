-- Columns in order, with their type as SQL and their place in the primary key.
select a.attname::text, format_type(a.atttypid, a.atttypmod),
       array_position(x.indkey::smallint[], a.attnum)::integer
from pg_attribute a
left join pg_index x on x.indrelid = a.attrelid and x.indisprimary
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum
