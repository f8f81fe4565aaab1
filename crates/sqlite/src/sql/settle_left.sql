({new_is_staged}
        or not exists (select 1 from {table} as changefeed_row where {row_is_staged}))
