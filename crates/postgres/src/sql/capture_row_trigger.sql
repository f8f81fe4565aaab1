create trigger {trigger} after insert or update or delete on {table}
for each row execute function changefeed.{function}();
