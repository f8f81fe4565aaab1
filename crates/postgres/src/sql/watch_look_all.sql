-- One look for all watches: which tables have changes that were not visible in the snapshot of the last look,
-- which backlogs have rows that nobody holds, and which have rows at all. Prepared, because it is made often:
-- its session allows index scans only, so that its plan cannot go wrong.
select pg_current_snapshot()::text, array[{changed}]::boolean[], array[{free}]::boolean[], array[{rows}]::boolean[]
