//! Histories of writers and readers that behave as badly as real ones. How they are recorded, and the checker that
//! judges them, is what `changefeed doctor --certify` uses too.

mod workload;

pub use changefeed_certify::history::*;
pub use workload::{Extent, Workload};
