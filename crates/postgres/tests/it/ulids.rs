//! ULID transactions on PostgreSQL: the pure SQL interface, the Rust client, promise 6 by
//! histories, promise 7 with clients that freeze and networks that are cut, and reading.

mod attacks;
mod client;
mod history;
mod lost_writers;
mod pairs;
mod process;
mod reading;
mod sql;
mod support;
