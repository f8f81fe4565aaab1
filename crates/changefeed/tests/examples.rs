//! The programs in `examples/` do what they say, also the second time.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::path::PathBuf;
use std::process::Command;

/// Runs an example on a file; cargo has built it beside this test.
fn run(name: &str, directory: &tempfile::TempDir) -> String {
    let tests = std::env::current_exe().unwrap();
    let built: PathBuf = tests.parent().unwrap().parent().unwrap().into();
    let output = Command::new(built.join("examples").join(name))
        .arg(directory.path().join("shop.db"))
        .output()
        .expect("`cargo test` of the whole package builds the examples, too");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn exactly_once() {
    let directory = tempfile::tempdir().unwrap();
    let first = "customer 7 has paid 1250\ncustomer 8 has paid 500\n";
    assert_eq!(run("exactly_once", &directory), first);
    let second = "customer 7 has paid 2500\ncustomer 8 has paid 1000\n";
    assert_eq!(run("exactly_once", &directory), second);
}

#[test]
fn watch_rows() {
    let directory = tempfile::tempdir().unwrap();
    let seen = run("watch_rows", &directory);
    assert_eq!(
        seen,
        "insert of order 1: new\ninsert of order 2: paid\n2 rows were handed over\n"
    );
}

#[test]
fn handle_events() {
    let directory = tempfile::tempdir().unwrap();
    let seen = run("handle_events", &directory);
    let mut lines: Vec<&str> = seen.lines().collect();
    // Events are delivered side by side.
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            r#"INSERT: nothing -> {"id":1,"status":"new"}"#,
            r#"UPDATE: {"id":1,"status":"new"} -> {"id":1,"status":"paid"}"#,
        ]
    );
}

#[test]
fn ulid_writer() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run("ulid_writer", &directory).lines().count(), 2);
    let seen = run("ulid_writer", &directory);
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.is_sorted(), "ULIDs increase: {lines:?}");
}
