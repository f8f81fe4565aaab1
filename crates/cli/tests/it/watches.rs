//! Watches as processes: what is typed and printed, and what becomes of the rows of a process that
//! is killed, frozen past its lease, or dies by the row itself.

mod commands;
mod handing;
mod processes;
mod promises;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use changefeed_testkit::backend::{eventually_true, on_every_backend};
use changefeed_testkit::process::Running;
use changefeed_testkit::watching::Scene;
use changefeed_testkit::{patience, run};
use serde_json::Value;

pub(crate) fn changefeed(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(args)
        .env("CHANGEFEED_DB", url)
        .env("RUST_LOG", "error")
        .env_remove("CHANGEFEED_CRASH_AT");
    command
}

/// Runs to the end; returns the exit code, standard output and standard error.
pub(crate) fn out(url: &str, args: &[&str]) -> (i32, String, String) {
    let output = changefeed(url, args).stdin(Stdio::null()).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

pub(crate) fn json_lines(url: &str, args: &[&str]) -> Vec<Value> {
    let (code, said, errors) = out(url, args);
    assert_eq!(code, 0, "{errors}");
    let lines = said.lines();
    lines.map(|l| serde_json::from_str(l).unwrap()).collect()
}

pub(crate) fn on_every_database(case: impl AsyncFn(Scene)) {
    run(async {
        on_every_backend(async |backend| case(Scene::new(backend).await).await).await;
    });
}

/// A function that appends its batches to a file, one JSON array per line. Each append is one
/// write, so that instances do not mix.
pub(crate) struct Journal {
    pub(crate) dir: tempfile::TempDir,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Journal {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    pub(crate) fn command(&self) -> String {
        format!("cat >> {}", self.path().display())
    }

    pub(crate) fn batches(&self) -> Vec<Vec<Value>> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The table as whoever follows the journal knows it.
    pub(crate) fn copy(&self) -> BTreeMap<i64, Option<String>> {
        let mut copy = BTreeMap::new();
        for change in self.batches().into_iter().flatten() {
            let id = change["Item"]["id"].as_i64().unwrap();
            if change["Operation"] == 2 {
                copy.remove(&id);
            } else {
                let note = change["Item"]["note"].as_str().map(str::to_owned);
                copy.insert(id, note);
            }
        }
        copy
    }
}

/// An instance of function `f` with a short lease. A server whose first answers take seconds needs a
/// longer one: rows that nobody could read in time have used up an attempt.
pub(crate) fn instance(url: &str, exec: &str, crash_at: Option<&str>) -> Running {
    let lease = format!("{}ms", 800 * patience());
    let mut command = changefeed(
        url,
        &[
            "watch",
            "orders",
            "--name",
            "f",
            "--exec",
            exec,
            "--batch",
            "10",
            "--lease",
            &lease,
            "--retry-interval",
            "20ms",
        ],
    );
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(place) = crash_at {
        command.env("CHANGEFEED_CRASH_AT", place);
    }
    Running::start(&mut command)
}

pub(crate) async fn processed(scene: &Scene) {
    eventually_true("everything is processed", async || {
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
}
