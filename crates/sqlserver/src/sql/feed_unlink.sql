-- Removes the links to the rows of a captured feed. By their keys: a search through the links of all
-- feeds would wait for writers.
delete r from changefeed.change c
join changefeed.change_row r
    with (forceseek) --@sqlserver
    on r.change_id = c.change_id and r.feed_id = c.feed_id
where c.feed_id = @P1
option (loop join, force order) --@sqlserver
