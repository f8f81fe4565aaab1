create trigger {trigger} after truncate on {table}
for each statement execute function changefeed.{function}();
