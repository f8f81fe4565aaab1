create trigger {trigger} after {event} on {table}
{when}begin
{body}
end
