//! Pages that would be too large for memory, and SQL readers that would skip.
