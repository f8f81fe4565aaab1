//! What the models assume is what is shipped: the lines that they execute are those that Microsoft's parser
//! finds in the SQL.
#![allow(
    missing_docs,
    clippy::print_stderr,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use changefeed_model::script::Script;

const PARSER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../testkit/python/tsql/shape.py"
);

/// What the parser finds: the lines of a procedure or statement, by where it stands and by its name.
type Shapes = BTreeMap<(String, String), Vec<String>>;

/// Starting the parser takes longer than all that it is asked.
static SHAPES: LazyLock<Option<Shapes>> = LazyLock::new(|| {
    let mut scripts = shipped();
    scripts.extend(edited().map(|(edit, sql)| (format!("{edit:?}"), sql)));
    shapes(&scripts)
});

fn shapes(scripts: &[(String, String)]) -> Option<Shapes> {
    let set = |name: &str| {
        std::env::var_os(name)
            .unwrap_or_else(|| panic!("{name} must be set; ./test does, and -h tells"))
    };
    if set("CHANGEFEED_TEST_TSQL") == "none" {
        eprintln!("not run: there is no parser for T-SQL here");
        return None;
    }
    let mut parser = Command::new(set("CHANGEFEED_TEST_PYTHON"))
        .arg(PARSER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = parser.stdin.take().unwrap();
    for (name, sql) in scripts {
        // It reads everything before it says anything, so neither waits for the other. If it has ended
        // early, what it said tells why, and not the pipe.
        let _ = writeln!(stdin, "{}", serde_json::json!({ "name": name, "sql": sql }));
    }
    drop(stdin);
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "the parser failed");
    let said = String::from_utf8(output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let found = said.lines().map(|line| {
        let shape: serde_json::Value = serde_json::from_str(line).unwrap();
        let lines = shape["lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect();
        ((text(&shape["of"]), text(&shape["name"])), lines)
    });
    Some(found.collect())
}

/// What the models are of: all migrations, and the files whose names their scripts have. A blank in a file
/// says nothing about locks or order: any word will do.
fn shipped() -> Vec<(String, String)> {
    let mut scripts = vec![(
        "migrations".to_owned(),
        changefeed_sqlserver::migration_script(),
    )];
    for script in changefeed_model::tied() {
        if script.of.ends_with(".sql") {
            scripts.push((script.of.to_owned(), filled(&in_file(script.of))));
        } else if let Some((file, begin)) = script.of.split_once(": ") {
            scripts.push((script.of.to_owned(), filled(&in_code(file, begin))));
        }
    }
    scripts
}

/// The text in this code that begins with these words, without what continues it on the next line.
fn literal(code: &str, begin: &str) -> String {
    let start = code.find(&format!("\"{begin}"));
    let start = start.unwrap_or_else(|| panic!("there is no statement '{begin}'")) + 1;
    let end = start + code[start..].find('"').unwrap();
    let mut lines = code[start..end].split("\\\n");
    let first = lines.next().unwrap_or_default();
    let lines: Vec<&str> = std::iter::once(first)
        .chain(lines.map(str::trim_start))
        .collect();
    lines.concat()
}

/// What stands in the code and fills a blank of a file.
fn in_code(file: &str, begin: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sqlserver/src");
    literal(
        &std::fs::read_to_string(format!("{folder}/{file}")).unwrap(),
        begin,
    )
}

fn in_file(file: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sqlserver/src/sql");
    std::fs::read_to_string(format!("{folder}/{file}")).unwrap()
}

fn filled(sql: &str) -> String {
    let held = in_code("backlog/statements.rs", "_changefeed_attempt_count > 0");
    let unleased = in_code("backlog/statements.rs", "_changefeed_lease_owner = null");
    let claim = in_code("backlog/moving.rs", ", tracked_version = @until");
    let unclaimed = in_code("backlog/moving.rs", " and tracked_version = @since");
    let lock = in_code(
        "backlog.rs",
        "update changefeed.watched_table set last_version",
    );
    // A long condition finds the table's row.
    let life = "(select concat(i.object_id, '/', c.begin_version) from ";
    let tracked_in = in_code("tracking.rs", life);
    assert!(tracked_in.ends_with("and i.internal_type = 209)"));
    let tracked_in = format!("{life}tracking i, tracking c)");
    let ids = in_file("backfill_captured.sql").replace("{here}", "");
    let newer = in_file("watch_newer.sql");
    let draw = in_file("watch_draw.sql");
    // Parts that have a script of their own are calls here.
    let blanks = [
        ("{ids}", ids.as_str()),
        ("{draw}", draw.as_str()),
        ("{lock}", &lock),
        ("{held}", &held),
        ("{unleased}", &unleased),
        ("{newer_becomes_current}", newer.trim_end()),
        ("{claim}", &claim),
        ("{unclaimed}", &unclaimed),
        ("{tracked_in}", &tracked_in),
        ("{functions}", "exec functions;"),
        ("{take_changes}", "exec take_changes;"),
        ("{settle}", "exec settle;"),
        ("{claim_new}", "exec claim_new;"),
        ("{claim_tried}", "exec claim_tried;"),
        ("{names}", ""),
        ("{row}", ""),
        ("{join}", ""),
        ("{declare}", ""),
        ("{position}", ""),
        ("{forget}", ""),
        ("{read_changes}", ""),
        ("{bytes}", "1"),
        ("{image}", "null"),
        ("{table_id}", "@table_id"),
        ("{function_id}", "@function_id"),
        ("{generation}", "@functions_generation"),
        ("{leases}", "leases"),
        ("{log}", "log"),
        ("{table}", "dbo.item"),
        ("{owner}", "@owner"),
        ("{attempts}", "@attempts"),
        ("{chunk}", "10"),
        ("{batch}", "10"),
        ("{groups}", "when @tried < 3 then 5"),
        ("{tried}", "="),
        ("{error}", "@error"),
        ("{seconds}", "1"),
        ("{milliseconds}", "1"),
        ("{tracked_columns}", "null"),
        ("{resume}", "t.id > @last_id"),
        ("{k_types}", "k0 int"),
        ("{key_array}", "N''"),
        ("{same_key}", "q.id = k0"),
        ("{t_keys}", "t.id"),
        ("{c_keys}", "c.id"),
        ("{l_keys}", "l.id"),
        ("{s_k}", "s.k0"),
        ("{n_k}", "n.k0"),
        ("{p_k}", "p.k0"),
        ("{keys}", "id"),
        ("{k}", "k0"),
        ("{shard}", "0"),
        ("{key}", "N''"),
        ("{change_id}", "null"),
        ("{order}", "t.id"),
    ];
    let fill = |sql: String, (blank, word): &(&str, &str)| sql.replace(blank, word);
    blanks.iter().fold(sql.to_owned(), fill)
}

/// What a script of a model says that the shipped SQL does not, and the other way round.
fn differences(script: &Script, shipped: &[String]) -> Vec<String> {
    let said: Vec<&str> = script.lines.iter().map(|l| l.text.as_str()).collect();
    let shipped: Vec<&str> = shipped.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    if said == shipped {
        return found;
    }
    for line in &shipped {
        if !said.contains(line) {
            found.push(format!(
                "{}: shipped, and the model does not know it: {line}",
                script.of
            ));
        }
    }
    for line in &said {
        if !shipped.contains(line) {
            found.push(format!(
                "{}: the model assumes it, and it is not shipped: {line}",
                script.of
            ));
        }
    }
    if found.is_empty() {
        found.push(format!(
            "{}: the same lines in another order: {shipped:#?}",
            script.of
        ));
    }
    found
}

#[test]
fn the_models_are_of_what_is_shipped() {
    let Some(shipped) = SHAPES.as_ref() else {
        return;
    };
    let mut wrong = Vec::new();
    for script in changefeed_model::tied() {
        let of = match script.of.starts_with("changefeed.") {
            true => "migrations",
            false => script.of,
        };
        match shipped.get(&(of.to_owned(), script.of.to_owned())) {
            Some(lines) => wrong.extend(differences(&script, lines)),
            None => wrong.push(format!(
                "{}: there is no such procedure or statement",
                script.of
            )),
        }
    }
    let is_of_feeds = |line: &&String| {
        line.starts_with("index ") && (line.contains(" on change") || line.contains(" on shard"))
    };
    let all = &shipped[&("migrations".to_owned(), "migrations".to_owned())];
    let indexes: Vec<String> = all.iter().filter(is_of_feeds).cloned().collect();
    wrong.extend(differences(&changefeed_model::sweep::indexes(), &indexes));
    // What decides about variables only has no line.
    let life = "if @noted <> @known\n        set @missed =";
    if !in_file("watch_changes_tracked.sql").contains(life) {
        wrong.push(
            "watch_changes_tracked.sql: another life of change tracking is not noticed".to_owned(),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const EDITS: [(&str, &str); 9] = [
    ("with (updlock, forceseek)", "with (forceseek)"),
    (
        "readcommittedlock, readpast, index",
        "readcommittedlock, index",
    ),
    ("and c.change_id < @bound", "and c.change_id <= @bound"),
    (
        "if @@rowcount <> @change_count\n        throw 55202",
        "if @@rowcount < 0\n        throw 55202",
    ),
    ("and s.last_change_sequence_number = @last;", ";"),
    ("set transaction isolation level read committed;", ""),
    (
        "    if @versioned = 0 and @snapshots = 0 set @bound = next value for changefeed.change_id;\n\n    while 1 = 1\n    begin\n",
        "    while 1 = 1\n    begin\n    if @versioned = 0 and @snapshots = 0 set @bound = next value for changefeed.change_id;\n",
    ),
    ("if @snapshots = 0 or @last = @seen break;", "break;"),
    ("set transaction isolation level snapshot;", ""),
];

/// `sweep_shard` with each of the edits.
fn edited() -> impl Iterator<Item = (usize, String)> {
    let sql = changefeed_sqlserver::migration_script();
    let start = sql.find("create procedure changefeed.sweep_shard").unwrap();
    let end = start + sql[start..].find("\nGO").unwrap();
    let procedure = sql[start..end].to_owned();
    EDITS.iter().enumerate().map(move |(number, (from, to))| {
        let edited = procedure.replace(from, to);
        assert_ne!(edited, procedure, "{from}");
        (number, edited)
    })
}

/// A tie that cannot break ties nothing.
#[test]
fn an_edit_of_the_sql_is_seen() {
    let Some(shapes) = SHAPES.as_ref() else {
        return;
    };
    let script = changefeed_model::sweep::sweep_shard();
    for (number, edit) in EDITS.iter().enumerate() {
        let lines = &shapes[&(format!("{number}"), "changefeed.sweep_shard".to_owned())];
        assert!(!differences(&script, lines).is_empty(), "{edit:?}");
    }
}
