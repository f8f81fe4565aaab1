begin
                -- Only true lets a change pass, and an error in the condition too: the writer is
                -- not to suffer for it, and an event too many is better than one too few.
                if ({expression}
                ) is not true then
                    return null;
                end if;
            exception when others then
                raise warning 'changefeed: the condition of event trigger % failed: %',
                    {name}, sqlerrm;
            end;
