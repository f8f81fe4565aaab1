//! What the browser looks at: the demo, or a server of an empty database.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use changefeed::sqlite::rusqlite::Connection;
use changefeed_testkit::process::Running;

pub(crate) fn changefeed(database: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        // The demo does not take a database that only the environment names.
        .args(["--db", database])
        .args(args)
        .env_remove("CHANGEFEED_DB")
        // What is tested is what was compiled in.
        .env_remove("CHANGEFEED_PAGE")
        .env("RUST_LOG", "error");
    command
}

/// A server and its database.
pub(crate) struct Stage {
    pub(crate) url: String,
    path: PathBuf,
    _process: Running,
    _directory: tempfile::TempDir,
}

impl Stage {
    /// `serve --demo`, which promises that everything is to be seen within seconds.
    pub(crate) fn demo() -> Stage {
        Stage::start(&["serve", "--demo", "--listen", "127.0.0.1:0"], |_| {})
    }

    /// `serve` on a database that `prepare` may work on before.
    pub(crate) fn empty(prepare: impl FnOnce(&str)) -> Stage {
        Stage::start(&["serve", "--listen", "127.0.0.1:0"], |database| {
            let migrated = changefeed(database, &["migrate"]).output().unwrap();
            assert!(migrated.status.success(), "{migrated:?}");
            prepare(database);
        })
    }

    fn start(args: &[&str], prepare: impl FnOnce(&str)) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let database = format!("sqlite:{}", path.display());
        prepare(&database);
        let mut process = Running::start(
            changefeed(&database, args)
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit()),
        );
        let mut lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let begin = line.find("http://127.0.0.1:")?;
                let url = line[begin..].split([';', ' ']).next()?;
                Some(url.to_owned())
            })
            .expect("the server says where it is");
        // The demo tells of every change, and waits if nobody listens.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Stage {
            url,
            path,
            _process: process,
            _directory: directory,
        }
    }

    pub(crate) fn database(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    pub(crate) fn at(&self, place: &str) -> String {
        format!("{}/{place}", self.url)
    }

    /// Writes to the shop as an application would. The shop's own next order gets the next id: a journey
    /// that writes twice leaves room between its ids.
    pub(crate) fn order(&self, id: i64, status: &str, cents: i64) {
        self.shop()
            .execute(
                "insert into orders (id, customer_id, status, cents) values (?1, 7, ?2, ?3)",
                (id, status, cents),
            )
            .unwrap();
    }

    /// An order that changes its status before the demo's shop can lay hands on it.
    pub(crate) fn changed_order(&self, id: i64, before: &str, after: &str) {
        let mut shop = self.shop();
        let both = shop.transaction().unwrap();
        both.execute(
            "insert into orders (id, customer_id, status, cents) values (?1, 7, ?2, 100)",
            (id, before),
        )
        .unwrap();
        both.execute("update orders set status = ?2 where id = ?1", (id, after))
            .unwrap();
        both.commit().unwrap();
    }

    fn shop(&self) -> Connection {
        let shop = Connection::open(&self.path).unwrap();
        shop.busy_timeout(std::time::Duration::from_secs(30))
            .unwrap();
        shop
    }
}
