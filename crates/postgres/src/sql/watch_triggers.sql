create trigger {trigger} after insert or update or delete on {table}
for each row execute function changefeed.{function}();
create trigger {truncate} before truncate on {table}
for each statement execute function changefeed.track_truncate({log_name});
