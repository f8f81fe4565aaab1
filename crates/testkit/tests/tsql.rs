//! All T-SQL that we ship or generate, judged by Microsoft's own parser and binder: what no server
//! is needed for. `python/tsql` tells how.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const JUDGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/tsql");

fn set_by_the_gate(name: &str) -> OsString {
    std::env::var_os(name)
        .unwrap_or_else(|| panic!("{name} must be set; ./test does, and -h tells"))
}

fn migration(name: &str, sql: &str) -> Value {
    json!({ "name": name, "sql": sql, "migration": true })
}

fn statement(name: &str, sql: &str) -> Value {
    json!({ "name": name, "sql": sql })
}

/// What the judge says, or nothing where there is none.
fn judge(scripts: &[Value]) -> Option<Output> {
    if set_by_the_gate("CHANGEFEED_TEST_TSQL") == "none" {
        eprintln!("not run: there is no parser for T-SQL here");
        return None;
    }
    let mut judge = Command::new(set_by_the_gate("CHANGEFEED_TEST_PYTHON"))
        .arg(JUDGE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = judge.stdin.take().unwrap();
    for script in scripts {
        // It reads everything before it says anything, so neither waits for the other. If it has
        // ended early, what it said tells why, and not the pipe.
        let _ = writeln!(stdin, "{script}");
    }
    drop(stdin);
    Some(judge.wait_with_output().unwrap())
}

/// The judge tries itself on many mistakes at every run; this is about how we ask it.
#[test]
fn a_mistake_is_told_with_its_place() {
    let scripts = [
        migration(
            "tables",
            "create table dbo.item (id int, name nvarchar(10))",
        ),
        statement("sound", "select i.id from dbo.item i where i.name = @P1"),
        statement("unreadable", "select 1;\nselect from"),
        statement("unknown variable", "  select @count"),
        statement(
            "unknown column",
            "select i.id\nfrom dbo.item i\nwhere i.nam = @P1",
        ),
    ];
    let Some(output) = judge(&scripts) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}{complained}");
    assert!(said.contains("unreadable:2:8: "), "{said}");
    assert!(said.contains("unknown variable:1:10: "), "{said}");
    assert!(said.contains("unknown column:3:9: "), "{said}");
    assert!(!said.contains("sound:"), "{said}");
}
