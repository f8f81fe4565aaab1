//! What the tests of all models do.

use std::time::Instant;

use changefeed_model::check::{Protocol, check, find};
use changefeed_model::script::Script;

/// Whether this run may take its time: `./test --soak`.
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

/// The texts of a script stand in a function or trigger, in this order: for SQL that the parser of the other
/// tests does not read.
pub(crate) fn stands_in(script: &Script, sql: &str, create: &str, end: &str) {
    let start = sql.find(&format!("{create} {}", script.of));
    let start = start.unwrap_or_else(|| panic!("there is no {}", script.of));
    let end = start + sql[start..].find(end).unwrap();
    let words: Vec<&str> = sql[start..end]
        .lines()
        .map(|line| line.split("--").next().unwrap())
        .flat_map(str::split_whitespace)
        .collect();
    let body = words.join(" ");
    let mut rest = body.as_str();
    for line in &script.lines {
        let Some(at) = rest.find(&line.text) else {
            panic!(
                "{}: not there, or not in this order: {}",
                script.of, line.text
            );
        };
        rest = &rest[at + line.text.len()..];
    }
}
