//! Every wrong thing a person can type gets one clear sentence, a non-zero exit, and changes
//! nothing. Table-driven: the exact words, the exit code (2 for what was typed wrong, 1 for what
//! failed), and a dump of the database before and after.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::ffi::OsStr;
use std::process::{Command, Output};
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend};
use changefeed_testkit::postgres::{as_role, program};
use changefeed_testkit::run;

struct Case {
    args: &'static str,
    code: i32,
    says: &'static str,
}

/// `args` are split at blanks; `␣` stands for a blank inside an argument.
const fn case(args: &'static str, code: i32, says: &'static str) -> Case {
    Case { args, code, says }
}

/// On a database with the feed `orders` (id 37, shards 0 and 1, captured by `customer`), the
/// feed `plain`, a view `recent`, a table `loose` without a key, and one change in each shard.
const CASES: &[Case] = &[
    // What does not exist.
    case(
        "feed read nosuch",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed tail nosuch",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed backfill nosuch",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed trim nosuch --older-than 1s",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed drop nosuch --yes",
        1,
        "error: there is no feed 'nosuch'\n  hint: the feeds are orders, plain",
    ),
    case(
        "feed read orders --shard 7",
        1,
        "error: feed 'orders' has no shard 7\n  hint: its shards are 0, 1",
    ),
    case(
        "consumer set c --feed orders --shard 9 --cursor 5",
        1,
        "error: feed 'orders' has no shard 9\n  hint: its shards are 0, 1",
    ),
    case(
        "consumer drop nosuch --feed orders",
        1,
        "error: feed 'orders' has no consumer 'nosuch'\n  \
         hint: `changefeed consumer list` shows the consumers",
    ),
    // What does not go together.
    case(
        "feed create x --from orders --shards 2",
        2,
        "error: a feed with 2 shards needs a column that decides the shard\n  \
         hint: add --shard-by COLUMN",
    ),
    case(
        "feed create x --shard-by customer",
        2,
        "error: --shard-by needs a table to look at\n  hint: add --from TABLE or --rows TABLE",
    ),
    // What is there already.
    case(
        "feed create orders",
        1,
        "error: there is already a feed 'orders'\n  hint: `changefeed feed list` shows the feeds",
    ),
    case(
        "feed create other --id 37",
        1,
        "error: there is already a feed with id 37\n  hint: `changefeed feed list` shows the feeds",
    ),
    // Cursors and pages.
    case(
        "feed read orders --after 9999999999999999",
        1,
        "error: cursor 9999999999999999 is ahead of feed 'orders' shard 0, whose last number is \
         2000000000000001\n  hint: it comes from another feed or database, or this database was \
         restored from a backup",
    ),
    case(
        "feed read orders --after -5",
        2,
        "error: invalid value '-5' for '--after <AFTER>': '-5' is not a cursor: use 'first', \
         'last', a number or ULID from an earlier page, or a time like 2026-01-31T12:00:00Z",
    ),
    case(
        "feed read orders --after yesterday",
        2,
        "error: invalid value 'yesterday' for '--after <AFTER>': 'yesterday' is not a cursor: use \
         'first', 'last', a number or ULID from an earlier page, or a time like \
         2026-01-31T12:00:00Z",
    ),
    case(
        "feed read orders --limit 0",
        2,
        "error: invalid value '0' for '--limit <LIMIT>': a page of 0 changes is not possible: ask \
         for 1 to 10000",
    ),
    case(
        "feed read orders --limit -1",
        2,
        "error: invalid value '-1' for '--limit <LIMIT>': a page of -1 changes is not possible: \
         ask for 1 to 10000",
    ),
    case(
        "feed read orders --limit 10001",
        2,
        "error: invalid value '10001' for '--limit <LIMIT>': a page of 10001 changes is not \
         possible: ask for 1 to 10000",
    ),
    case(
        "feed tail orders --after 2000000000000001",
        2,
        "error: a cursor belongs to one shard\n  hint: add --shard N",
    ),
    // Names and numbers.
    case(
        "feed create bad␣name",
        2,
        "error: invalid value 'bad name' for '<NAME>': 'bad name' is not a feed name: use 1 to \
         100 letters, digits, '_' and '-'",
    ),
    case(
        "feed create x --id 40000",
        2,
        "error: invalid value '40000' for '--id <ID>': '40000' is not a feed id: it must be a \
         whole number from -32768 to 32767",
    ),
    case(
        "feed create x --shards 0",
        2,
        "error: invalid value '0' for '--shards <SHARDS>': 0 is not in 1..=32767",
    ),
    case(
        "feed read orders --shard abc",
        2,
        "error: invalid value 'abc' for '--shard <SHARD>': 'abc' is not a shard: it must be a \
         whole number from -32768 to 32767",
    ),
    case(
        "sweep --group abc",
        2,
        "error: invalid value 'abc' for '--group <GROUP>': 'abc' is not a sweep group: it must be \
         a whole number from -32768 to 32767",
    ),
    case(
        "consumer set a␣b --feed orders --cursor 5",
        2,
        "error: invalid value 'a b' for '<NAME>': 'a b' is not a consumer name: use 1 to 100 \
         letters, digits, '_' and '-'",
    ),
    case(
        "feed create x --from a;drop␣table␣orders",
        2,
        "error: 'a;drop table orders' is not a table name\n  \
         hint: write it as in SQL: orders, sales.orders or sales.\"Order\"",
    ),
    case(
        "feed trim orders --older-than 5",
        2,
        "error: invalid value '5' for '--older-than <DURATION>': '5' is not a duration: use a \
         number with a unit, like 500ms, 2s or 7d",
    ),
    case(
        "feed backfill plain",
        2,
        "error: feed 'plain' does not know where its rows are, so there is nothing to backfill\n  \
         hint: create feeds with --from TABLE or --rows TABLE",
    ),
    // Nobody at the terminal to say yes.
    case(
        "feed drop orders",
        2,
        "error: This removes feed 'orders' with all its changes and cursors. Nobody is there to \
         answer\n  hint: add --yes to go ahead without asking",
    ),
    case(
        "uninstall",
        2,
        "error: This removes every feed, number and cursor of changefeed from the database, and \
         its triggers from your tables. Nobody is there to answer\n  \
         hint: add --yes to go ahead without asking",
    ),
    // Words that are no words of ours.
    case(
        "feed create x --bogus",
        2,
        "error: unexpected argument '--bogus' found",
    ),
    case("bogus", 2, "error: unrecognized subcommand 'bogus'"),
    case(
        "feed create x --from orders --rows orders",
        2,
        "error: the argument '--from <TABLE>' cannot be used with '--rows <TABLE>'",
    ),
];

/// What is said of tables, in each database's way of naming them.
const SQLITE_TABLES: &[Case] = &[
    case(
        "feed create x --from odrers",
        1,
        "error: there is no table odrers\n  \
         hint: write its name as in SQL, with quotes if it has blanks or signs",
    ),
    case(
        "feed create x --from orders --shards 2 --shard-by custmer",
        1,
        "error: table orders has no column 'custmer'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --rows orders",
        1,
        "error: table orders has no column 'change_id'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --from loose",
        2,
        "error: table loose has no primary key, so its changes could not be told apart\n  \
         hint: add a primary key to it",
    ),
    case(
        "feed create x --from recent",
        2,
        "error: recent is a view; changes can only be captured from a table",
    ),
];

const POSTGRES_TABLES: &[Case] = &[
    case(
        "feed create x --from odrers",
        1,
        "error: there is no table odrers\n  \
         hint: write it as in SQL, with its schema if it is not in the search path",
    ),
    case(
        "feed create x --from orders --shards 2 --shard-by custmer",
        1,
        "error: table public.orders has no column 'custmer'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --rows orders",
        1,
        "error: table public.orders has no column 'change_id'\n  hint: its columns are id, customer",
    ),
    case(
        "feed create x --from loose",
        2,
        "error: table public.loose has no primary key, so its changes could not be told apart\n  \
         hint: add a primary key to it",
    ),
    case(
        "feed create x --from recent",
        2,
        "error: public.recent is a view; changes can only be captured from a table",
    ),
    case(
        "feed create x --from nowhere.orders",
        1,
        "error: there is no table nowhere.orders\n  \
         hint: write it as in SQL, with its schema if it is not in the search path",
    ),
    case(
        "feed create x --from changefeed.numbered",
        2,
        "error: changefeed.numbered is one of changefeed's own tables",
    ),
];

fn changefeed<A: AsRef<OsStr>>(url: &str, args: impl IntoIterator<Item = A>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_changefeed"))
        .args(["--db", url])
        .args(args)
        .env_remove("CHANGEFEED_DB")
        .env_remove("RUST_LOG")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

/// What was said: without causes, which are the driver's words, and without clap's usage.
fn said(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let head: Vec<&str> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| !line.starts_with("  cause: "))
        .collect();
    head.join("\n")
}

fn works(url: &str, args: &str) -> String {
    let output = changefeed(url, args.split(' '));
    assert!(output.status.success(), "{args}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Sets the scene that [`CASES`] describes.
async fn scene(backend: &dyn Backend) {
    let url = backend.url();
    works(&url, "migrate");
    let session = backend.session().await;
    session
        .run("create table orders (id integer primary key, customer text)")
        .await;
    session.run("create table loose (a text)").await;
    session
        .run("create view recent as select * from orders")
        .await;
    works(
        &url,
        "feed create orders --id 37 --shards 2 --from orders --shard-by customer",
    );
    works(&url, "feed create plain --id 38");
    for id in 1..=2 {
        session
            .run(&format!(
                "insert into {} (feed_id, shard, change_id) values (37, {}, {id})",
                backend.words().our("change"),
                id - 1
            ))
            .await;
    }
    works(&url, "sweep --once");
}

fn check(url: &str, dump: impl Fn() -> String, cases: &[Case]) {
    let before = dump();
    let mut wrong = Vec::new();
    for case in cases {
        let args = case.args.split(' ').map(|arg| arg.replace('␣', " "));
        let output = changefeed(url, args);
        let (code, said) = (output.status.code(), said(&output));
        if code != Some(case.code) || said != case.says || !output.stdout.is_empty() {
            wrong.push(format!(
                "changefeed {}\n  expected {}: {}\n  found {code:?}: {said}",
                case.args, case.code, case.says
            ));
        }
        if dump() != before {
            wrong.push(format!(
                "changefeed {}: the database has changed",
                case.args
            ));
            break;
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

fn sqlite_dump(backend: &SqliteBackend) -> String {
    let output = Command::new("sqlite3")
        .arg(backend.path())
        .arg(".dump")
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn postgres_dump(url: &str) -> String {
    let output = program("pg_dump").args(["-d", url]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        // A random word that newer versions of pg_dump put around a dump.
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn bad_input_on_sqlite() {
    run(async {
        let backend = SqliteBackend::fresh().await;
        scene(&backend).await;
        for cases in [CASES, SQLITE_TABLES] {
            check(&backend.url(), || sqlite_dump(&backend), cases);
        }
    });
}

#[test]
fn bad_input_on_postgres() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        scene(&backend).await;
        let url = backend.url();
        for cases in [CASES, POSTGRES_TABLES] {
            check(&url, || postgres_dump(&url), cases);
        }
    });
}

/// Before anything is installed, and when a newer or an older program was there.
#[test]
fn the_schema_is_missing_too_new_or_too_old() {
    const COMMANDS: [&str; 8] = [
        "feed list",
        "feed read orders",
        "feed create x",
        "consumer list",
        "sweep --once",
        "sweep",
        "status",
        "serve",
    ];
    let backends: [fn() -> Arc<dyn Backend>; 2] = [
        || Arc::new(run(SqliteBackend::fresh())),
        || Arc::new(run(PostgresBackend::fresh())),
    ];
    for fresh in backends {
        let backend = fresh();
        let url = backend.url();
        let refuses = |args: &str, says: &str| {
            let output = changefeed(&url, args.split(' '));
            assert_eq!(said(&output), says, "{url} {args}");
            assert_eq!(output.status.code(), Some(1), "{url} {args}");
        };
        run(async {
            let session = backend.session().await;
            session.run("create table application (id integer)").await;
        });
        for args in COMMANDS {
            refuses(
                args,
                "error: changefeed is not installed in this database\n  \
                 hint: run `changefeed migrate`",
            );
        }
        works(&url, "migrate");
        run(async {
            let session = backend.session().await;
            session.run(backend.words().install_newer).await;
        });
        for args in COMMANDS.into_iter().chain(["migrate"]) {
            refuses(
                args,
                &format!(
                    "error: the database has changefeed schema 999, this program knows only {}\n  \
                     hint: use a newer changefeed program; nothing was changed",
                    changefeed::SCHEMA_VERSION
                ),
            );
        }
    }
}

/// URLs, one sentence each, and never the password.
#[test]
fn wrong_urls() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("text.db"), "this is not a database, but a text file\n").unwrap();
    let not_a_url = "error: this is not a database URL\n  \
                     hint: use sqlite:PATH, postgres://user:password@host/database or \
                     sqlserver://user:password@host/database";
    let cases = [
        ("mysql://u:secret@h/d".to_owned(), 2, not_a_url.to_owned()),
        ("orders.db".to_owned(), 2, not_a_url.to_owned()),
        (String::new(), 2, not_a_url.to_owned()),
        (
            "sqlite:".to_owned(),
            2,
            "error: the SQLite URL names no file\n  \
             hint: use sqlite:PATH, for example sqlite:changefeed.db"
                .to_owned(),
        ),
        (
            format!("sqlite:{}", path("no/x.db")),
            2,
            format!(
                "error: '{}' cannot be opened: there is no directory '{}'\n  \
                 hint: create the directory, or check the path",
                path("no/x.db"),
                path("no")
            ),
        ),
        (
            format!("sqlite:{}", dir.path().display()),
            2,
            format!(
                "error: '{}' is a directory\n  hint: name a file within it",
                dir.path().display()
            ),
        ),
        (
            format!("sqlite:{}", path("text.db")),
            2,
            format!(
                "error: '{}' is not an SQLite database\n  \
                 hint: check the path; an encrypted database cannot be opened either",
                path("text.db")
            ),
        ),
        (
            "sqlserver://u:secret@127.0.0.1:1/d".to_owned(),
            1,
            "error: the SQL Server at 127.0.0.1:1 cannot be reached\n  \
             hint: check host and port, and that the server is running"
                .to_owned(),
        ),
        (
            "sqlserver://u:secret@h/d?encrypt=maybe".to_owned(),
            2,
            "error: encrypt=maybe is not known: use true, strict, false or off".to_owned(),
        ),
        (
            "postgres://u:secret@127.0.0.1:1/d".to_owned(),
            1,
            "error: the PostgreSQL server cannot be reached\n  \
             hint: check host and port, and that the server is running"
                .to_owned(),
        ),
        (
            "postgres://u:secret@h:notaport/d".to_owned(),
            2,
            "error: this is not a PostgreSQL URL\n  \
             hint: use postgres://user:password@host:5432/database"
                .to_owned(),
        ),
    ];
    for (url, code, says) in cases {
        let output = changefeed(&url, ["migrate"]);
        assert_eq!(said(&output), says, "{url}");
        assert_eq!(output.status.code(), Some(code), "{url}");
        let reading = changefeed(&url, ["feed", "list"]);
        assert!(matches!(reading.status.code(), Some(1 | 2)), "{url}");
        for output in [output, reading] {
            let all = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                all.starts_with("error: ") && !all.contains("secret"),
                "{all}"
            );
        }
    }
}

/// A typing error in a path must not leave an empty database behind.
#[test]
fn a_file_that_does_not_exist_is_not_made_by_reading() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("typo.db");
    let url = format!("sqlite:{}", path.display());
    for args in ["feed list", "status", "feed read orders", "sweep --once"] {
        let output = changefeed(&url, args.split(' '));
        assert_eq!(
            said(&output),
            format!(
                "error: there is no database file '{}'\n  hint: `changefeed migrate` creates it",
                path.display()
            )
        );
        assert_eq!(output.status.code(), Some(1), "{args}");
        assert!(!path.exists(), "`{args}` made the file");
    }
}

/// A cursor of another feed must not be stored: trimming would believe it.
#[test]
fn a_cursor_of_another_feed_is_not_stored() {
    run(async {
        let backend = SqliteBackend::fresh().await;
        scene(&backend).await;
        let output = changefeed(
            &backend.url(),
            "consumer set c --feed orders --cursor 9999999999999999".split(' '),
        );
        assert!(
            said(&output).starts_with("error: cursor 9999999999999999 is ahead of feed 'orders'"),
            "{}",
            said(&output)
        );
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(works(&backend.url(), "consumer list --json"), "");
    });
}

/// Bytes that are no text.
#[cfg(unix)]
#[test]
fn invalid_utf8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let output = changefeed(
        "sqlite:x.db",
        [
            OsStr::new("feed"),
            OsStr::new("read"),
            OsStr::from_bytes(b"or\xffders"),
        ],
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        said(&output),
        "error: invalid UTF-8 was detected in one or more arguments"
    );
}

/// The grant that is missing is named.
#[test]
fn missing_rights_are_named() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        scene(&backend).await;
        let role = format!("cf_cli_{:08x}", std::process::id());
        let admin = (&backend as &dyn Backend).session().await;
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role} login password 'secret'"
            ))
            .await;
        let url = as_role(&backend.url(), &role, "secret");
        for args in ["feed list", "sweep --once", "feed read orders", "migrate"] {
            let output = changefeed(&url, args.split(' '));
            assert_eq!(output.status.code(), Some(1), "{args}");
            let all = String::from_utf8_lossy(&output.stderr).to_lowercase();
            assert!(all.contains("grant"), "{args}: {all}");
        }
        admin.run(&format!("drop role {role}")).await;
    });
}
