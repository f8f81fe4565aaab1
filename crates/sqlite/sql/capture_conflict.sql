select {feed}, {row_shard}, {row_key}
    from {table} as changefeed_row where {condition}
