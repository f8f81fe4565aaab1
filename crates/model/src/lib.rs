//! The protocols of changefeed as models that a checker walks through exhaustively, on a small model of
//! SQL Server's engine. Tests only: nothing of this is shipped, and nothing else depends on it.
//!
//! - [`engine`] is the server: rows, versions, locks, transactions. `ENGINE.md` says which documented
//!   behaviour each rule comes from.
//! - [`script`] is the shipped SQL as a list of lines. A model executes these lines: their order is the
//!   order of its steps, and their hints and conditions decide what a step does. A test compares the lines
//!   with what Microsoft's parser finds in the SQL itself.
//! - [`check`] runs a model, with its promises as properties.
//! - Everything else is one protocol each, with its mutations: edits of the lines that the checker must
//!   find fault with.

pub mod check;
pub mod engine;
pub mod events;
pub mod leases;
pub mod one_writer;
pub mod script;
pub mod snapshots;
pub mod sweep;
pub mod ulid;
pub mod watches;

/// All scripts that the models execute, by their names in the shipped SQL.
pub fn tied() -> Vec<script::Script> {
    [
        sweep::tied(),
        ulid::tied(),
        events::tied(),
        leases::tied(),
        watches::tied(),
    ]
    .concat()
}
