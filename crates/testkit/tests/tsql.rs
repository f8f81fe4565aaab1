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

/// Statements that stand in the code of the store itself: literals that begin with a word of SQL
/// and have no blanks.
fn inline_statements() -> Vec<(String, String)> {
    const WORDS: [&str; 7] = [
        "select ", "insert ", "update ", "delete ", "declare ", "exec ", "if @@",
    ];
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sqlserver/src");
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "rs") || path.ends_with("platform.rs") {
            continue;
        }
        let code = std::fs::read_to_string(&path).unwrap();
        let code = code.split("#[cfg(test)]").next().unwrap();
        let mut rest = code;
        while let Some(open) = rest.find('"') {
            let after = &rest[open + 1..];
            let Some(close) = end_of_literal(after) else {
                break;
            };
            let literal = joined_lines(&after[..close]);
            rest = &after[close + 1..];
            if WORDS.iter().any(|w| literal.starts_with(w)) && !literal.contains('{') {
                let name = path.file_name().unwrap().to_string_lossy();
                found.push((format!("{name} {}", found.len()), literal));
            }
        }
    }
    found
}

fn end_of_literal(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

/// Without the backslash that continues a literal on the next line.
fn joined_lines(literal: &str) -> String {
    let lines: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
    lines.join("").replace("\\\"", "\"")
}

#[test]
fn all_that_we_ship_and_generate_is_sound() {
    let mut scripts = vec![migration(
        "migrations",
        &changefeed_sqlserver::migration_script(),
    )];
    let statements = changefeed_sqlserver::statements();
    assert!(!statements.is_empty());
    let inline = inline_statements();
    assert!(inline.len() > 10, "{inline:?}");
    for (name, sql) in statements.iter().chain(&inline) {
        scripts.push(statement(name, sql));
    }
    let Some(output) = judge(&scripts) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    // For the summary of ./test.
    let summary = concat!(env!("CARGO_TARGET_TMPDIR"), "/tsql-summary");
    std::fs::write(summary, said.lines().last().unwrap()).unwrap();
}
