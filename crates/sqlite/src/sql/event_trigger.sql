create trigger {trigger} after {event} on {table}
{untold}begin
{body}
end
