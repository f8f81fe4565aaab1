-- The net changes of the oldest changes: first and last operation of each key, in the order of
-- their newest changes.
select max(seq), min(seq * 4 + op) & 3, max(seq * 4 + op) & 3, {keys}
  from {log} where seq <= ?1 group by {keys} order by 1
