//! Where batches go.

mod exec;

pub use exec::Exec;
