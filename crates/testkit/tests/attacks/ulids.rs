//! Writers who hide what they do to a ULID transaction.
