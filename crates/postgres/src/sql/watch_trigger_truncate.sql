create trigger {trigger} before truncate on {table}
for each statement execute function changefeed.{function}()
