//! Every wrong thing a person can type gets one clear sentence, a non-zero exit, and changes
//! nothing. Table-driven: the exact words, the exit code (2 for what was typed wrong, 1 for what
//! failed), and a dump of the database before and after.

mod cases;

use std::ffi::OsStr;
use std::process::{Command, Output};
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend};
use changefeed_testkit::postgres::{as_role, program};
use changefeed_testkit::run;

use cases::{CASES, Case, POSTGRES_TABLES, SQLITE_TABLES};

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
fn the_schema_is_missing_changed_too_new_or_too_old() {
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
        let version = changefeed::SCHEMA_VERSION;
        let planned = works(&url, "migrate --dry-run");
        assert_eq!(
            planned,
            format!("would install changefeed schema {version}\n")
        );
        works(&url, "migrate");
        let planned = works(&url, "migrate --dry-run");
        assert_eq!(
            planned,
            format!("changefeed schema {version} is already there\n")
        );
        let record = match url.starts_with("sqlite:") {
            true => "changefeed_schema",
            false => "changefeed.schema_version",
        };
        run(async {
            let session = backend.session().await;
            let edit = format!("update {record} set checksum = 'x' where version = 1");
            session.run(&edit).await;
        });
        for args in COMMANDS
            .into_iter()
            .chain(["migrate", "migrate --dry-run", "doctor"])
        {
            refuses(
                args,
                "error: migration 1 in this database is not the one of this program\n  hint: use the build of \
                 changefeed that installed it; or, if all feeds, events and watches may be lost, run \
                 `changefeed uninstall` and `changefeed migrate`",
            );
        }
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
                    version
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
            "error: the PostgreSQL server at 127.0.0.1:1 cannot be reached\n  \
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
