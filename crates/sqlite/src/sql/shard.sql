-- The shard of a value, as `shard_of` in the core computes it. Only functions that the stock
-- shell has: triggers run in the application's own connection. The subquery (with a limit, so that
-- it is evaluated once) stands where a common table expression would be nicer, but then no column
-- that it names could be renamed. A real goes by its whole part and its fraction in units of 2^-52,
-- both exact: its digits as text are not the same in every version of SQLite.
case typeof({value})
  when 'null' then 0
  when 'integer' then (({value} % {shards}) + {shards}) % {shards}
  else (
    select coalesce(sum(w.weight * (
             16 * instr('0123456789ABCDEF', substr(bytes.hex, 2 * w.position - 1, 1))
             + instr('0123456789ABCDEF', substr(bytes.hex, 2 * w.position, 1)) - 17)), 0)
           * 40503 % 4294967296 / 4096 % {shards}
      from (select hex(substr(cast(case
                when typeof({value}) <> 'real' then {value}
                when abs({value}) < 9000000000000000000.0 then cast({value} as integer) || '/'
                  || cast(({value} - cast({value} as integer)) * 4503599627370496.0 as integer)
                else 'e' || cast({value} / (4294967296.0 * 4294967296.0) as integer)
              end as blob), 1, 255)) as hex limit 1) as bytes,
           changefeed_weight w
     where w.position <= length(bytes.hex) / 2)
end
