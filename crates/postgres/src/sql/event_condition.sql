begin
                -- Only true lets a change pass, and an error in the condition too: the writer is
                -- not to suffer for it, and an event too many is better than one too few. It is
                -- given the values that events carry: those of somebody's own type would bring
                -- somebody's own casts and operators, and we have more rights than they.
                if (select ({expression}
                    ) from (select {old_columns}) old, (select {new_columns}) new) is not true then
                    return null;
                end if;
            exception when others then
                raise warning 'changefeed: the condition of event trigger % failed: %',
                    {name}, sqlerrm;
            end;
