    -- A row without an image is not in this feed: to its readers it comes and goes with its image.
    if before is null then
        old_key := null;
    end if;
    if after is null then
        new_key := null;
    end if;
    -- Nothing has changed of what the feed shows.
    if {only_columns} and old_key operator(pg_catalog.=) new_key and old_shard operator(pg_catalog.=) new_shard
       and before::pg_catalog.text operator(pg_catalog.=) after::pg_catalog.text then
        return null;
    end if;
