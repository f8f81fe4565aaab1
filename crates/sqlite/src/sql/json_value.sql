-- A value as JSON, in the same form as `value.rs` writes it. What is joined to an empty text has
-- forgotten that it came from a JSON function: json_quote would otherwise leave it as it is. A real
-- has 15 digits where those are enough, and otherwise more than it needs (17 would do, but SQLite
-- before 3.42 does not round them right). Very large and very
-- small ones always have more: there SQLite misreads its own digits.
case typeof({value})
  when 'integer' then {value}
  when 'text' then json_quote({value} || '')
  when 'null' then 'null'
  when 'real' then case
    when {value} = 9e999 then '"Infinity"'
    when {value} = -9e999 then '"-Infinity"'
    when (abs({value}) between 1e-15 and 1e15 or {value} = 0)
         and cast(printf('%!.15g', {value}) as real) = {value} then printf('%!.15g', {value})
    else printf('%!.20g', {value}) end
  else '"\\x' || lower(hex({value})) || '"' end
