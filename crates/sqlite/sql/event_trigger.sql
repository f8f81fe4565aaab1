create trigger {trigger} after {event} on {table}
begin
{body}
end
