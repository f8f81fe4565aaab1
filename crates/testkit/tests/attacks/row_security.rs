//! Row-level security that hides rows from us.
