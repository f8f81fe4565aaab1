//! The webhook sink against a receiver that misbehaves as it is told.

mod addresses;
mod bodies;
mod failures;
mod limits;
mod other_ecosystems;
mod reuse;
mod secrets;
mod support;
mod templates;
mod tls;
