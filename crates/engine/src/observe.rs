//! What an instance knows about itself and the others: calls that are counted and timed, samples of the
//! whole, whether its loops get anywhere, and what it tells the other instances.

mod announcer;
mod diagnosis;
mod gauges;
mod health;
mod looks;
mod metered;
mod meters;
mod samples;
mod series;

pub use announcer::{Introduction, announce};
pub use diagnosis::{Diagnosis, unswept};
pub use gauges::Gauges;
pub use health::{Health, Pulse};
pub use looks::Looks;
pub use metered::Metered;
pub use meters::Meters;
pub use samples::{Own, STEP, Sample, Samples, seen};
pub use series::{LENGTH, Line};
