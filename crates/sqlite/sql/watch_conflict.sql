select {stage}, {row_key}
    from {table} as changefeed_row where {condition}
