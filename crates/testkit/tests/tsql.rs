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

/// Statements that operations may take.
const ULID: u64 = 105;
const SWEEP: u64 = 57;
// Two of them ask whether the shard is closed, which only a statement before the last can: see page.sql.
const PAGE: u64 = 13;
// Three of them ask whether the trigger keeps a pace or debounces: see event_claim.sql.
const DELIVERY: u64 = 44;
const BATCH: u64 = 46;

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
    asked("", scripts)
}

/// What one of the programs beside the parser says.
fn asked(program: &str, scripts: &[Value]) -> Option<Output> {
    if set_by_the_gate("CHANGEFEED_TEST_TSQL") == "none" {
        eprintln!("not run: there is no parser for T-SQL here");
        return None;
    }
    let mut judge = Command::new(set_by_the_gate("CHANGEFEED_TEST_PYTHON"))
        .arg(std::path::Path::new(JUDGE).join(program))
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

/// An operation: what it is called, what is sent for it, one text for each round trip, and the conditions that hold on
/// its way.
fn operation(name: &str, scripts: &[String], taken: &[&str]) -> Value {
    json!({ "name": name, "scripts": scripts, "taken": taken })
}

/// Each statement costs something, on some servers much. What is found here is in the report of `cargo test --
/// --nocapture`: whoever needs more than is allowed says why, and raises the number.
#[test]
fn operations_take_few_statements() {
    let all = changefeed_sqlserver::statements().unwrap();
    let of = |name: &str| {
        let found = all.iter().find(|(n, _)| n.starts_with(name));
        found
            .unwrap_or_else(|| panic!("there is no {name}"))
            .1
            .clone()
    };
    let text = |sql: &str| sql.to_owned();
    let operations = [
        // name, what is sent, conditions that hold, statements at most
        (
            "a ULID transaction with one row",
            vec![
                text("begin transaction; exec changefeed.begin_ulid_transaction 'x', 0"),
                text(
                    "declare @ulid binary(16); exec changefeed.new_ulid @ulid = @ulid output; \
                     insert into event (shard, ulid) values (0, @ulid)",
                ),
                text("exec changefeed.commit_ulid_transaction; commit transaction"),
            ],
            &[
                "@mine = 0",
                "@result >= 0",
                "@level <> 5",
                "@floor_time is null or @time > @floor_time",
                "sysutcdatetime() < convert(datetime2(3), session_context(N'ulid_due'))",
            ][..],
            ULID,
        ),
        (
            "a sweep of one shard",
            vec![text("exec changefeed.sweep 0")],
            &["@versioned = 1"],
            SWEEP,
        ),
        ("a page of changes", vec![of("captured page of")], &[], PAGE),
        (
            "a delivery",
            vec![of("event_claim.sql"), of("event_finish.sql")],
            &[],
            DELIVERY,
        ),
        (
            "a batch of a watch",
            vec![
                of("watch look of"),
                of("watch take of"),
                of("watch rows of"),
                of("watch done of"),
            ],
            &[],
            BATCH,
        ),
    ];
    let mut lines = vec![json!({ "sql": changefeed_sqlserver::migration_script() })];
    for (name, scripts, taken, _) in &operations {
        lines.push(operation(name, scripts, taken));
    }
    let Some(output) = asked("count.py", &lines) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    eprintln!("{said}");
    for ((name, .., most), line) in operations.iter().zip(said.lines()) {
        let count: Value = serde_json::from_str(line).unwrap();
        assert_eq!(count["name"], *name);
        let statements = count["statements"].as_u64().unwrap();
        assert!(
            statements <= *most,
            "{name}: {count}, and {most} were allowed"
        );
    }
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
    let statements = changefeed_sqlserver::statements().unwrap();
    assert!(!statements.is_empty());
    let inline = inline_statements();
    assert!(inline.len() > 10, "{inline:?}");
    // Of `doctor --certify`.
    let certify = concat!(env!("CARGO_MANIFEST_DIR"), "/../certify/src/sql");
    for file in std::fs::read_dir(certify).unwrap() {
        let path = file.unwrap().path();
        let sql = std::fs::read_to_string(&path).unwrap();
        scripts.push(statement(
            &path.file_name().unwrap().to_string_lossy(),
            &sql,
        ));
    }
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
