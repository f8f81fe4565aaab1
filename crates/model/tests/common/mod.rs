//! What the tests of all models do.

use std::time::Instant;

use changefeed_model::check::{Protocol, check, find};

/// Whether this run may take its time: `./test --soak`.
#[allow(dead_code, reason = "not every model has more to look at")]
pub(crate) fn larger() -> bool {
    std::env::var_os("CHANGEFEED_SOAK").is_some()
}

/// All promises hold in all states, and what must be reached is reached.
pub(crate) fn holds<P: Protocol>(what: &str, protocol: P) {
    let began = Instant::now();
    let verdict = check(protocol);
    eprintln!(
        "{what}: {} states, {} ms",
        verdict.states,
        began.elapsed().as_millis()
    );
    assert!(verdict.broken.is_empty(), "{what}: {:#?}", verdict.broken);
}

/// The promise that is named is broken.
#[allow(dead_code, reason = "not every model has mutations of its own")]
pub(crate) fn is_found<P: Protocol>(mutation: &str, breaks: &'static str, protocol: P) {
    let verdict = find(protocol, breaks);
    let found = verdict.broken.iter().find(|b| b.starts_with(breaks));
    eprintln!("found '{mutation}' after {} states", verdict.states);
    assert!(
        found.is_some(),
        "'{mutation}' does not break '{breaks}': {:#?}",
        verdict.broken
    );
}
