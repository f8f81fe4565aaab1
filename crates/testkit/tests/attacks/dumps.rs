//! Backups that run beside a sweep, and databases that were restored from them.

mod event_ids;
