//! A real `changefeed serve`, on a port that the system chooses.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::process::Running;

use crate::http::client::{Answer, get};

pub(crate) fn changefeed(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(args)
        .env("CHANGEFEED_DB", url)
        .env("RUST_LOG", "warn,changefeed=info");
    command
}

/// Runs to the end, which must be a success; returns standard output.
pub(crate) fn out(url: &str, args: &[&str]) -> String {
    let output = changefeed(url, args).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A token of these scopes.
pub(crate) fn token(url: &str, scopes: &str) -> String {
    let text = out(url, &["token", "create", "t", "--scope", scopes]);
    text.lines().next().unwrap().to_owned()
}

/// A server of our own.
pub(crate) struct Serving {
    pub(crate) process: Running,
    pub(crate) at: SocketAddr,
}

impl Serving {
    pub(crate) fn start(url: &str, args: &[&str]) -> Serving {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend(args);
        Serving::spawn(changefeed(url, &all).stderr(Stdio::inherit()))
    }

    /// Starts a command that serves.
    pub(crate) fn spawn(command: &mut Command) -> Serving {
        let mut process = Running::start(command.stdout(Stdio::piped()));
        let mut said = String::new();
        let output = process.child().stdout.take().unwrap();
        BufReader::new(output).read_line(&mut said).unwrap();
        let at = said
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once(';'))
            .and_then(|(at, _)| at.parse().ok())
            .unwrap_or_else(|| panic!("no address in '{said}'"));
        Serving { process, at }
    }

    pub(crate) async fn get(&self, path: impl Into<String>) -> Answer {
        get(path).send(self.at).await
    }
}

/// A table of orders, its feed of two shards, and a server.
pub(crate) async fn shop(backend: &Arc<dyn Backend>, args: &[&str]) -> (String, Serving) {
    let url = orders(backend).await;
    let serving = Serving::start(&url, args);
    (url, serving)
}

/// A table of orders and its feed.
pub(crate) async fn orders(backend: &Arc<dyn Backend>) -> String {
    backend.installed().await;
    backend
        .session()
        .await
        .run("create table orders (id bigint primary key, customer bigint, note text)")
        .await;
    let url = backend.url();
    let create = "feed create orders --id 7 --shards 2 --from orders --shard-by customer";
    out(&url, &create.split(' ').collect::<Vec<_>>());
    url
}

/// Waits until so many clients wait.
pub(crate) async fn waits(serving: &Serving, clients: usize) {
    let wanted = format!("changefeed_http_waiting {clients}.0");
    changefeed_testkit::eventually(&wanted, || async {
        let metrics = serving.get("/metrics").await.body;
        metrics.contains(&wanted).then_some(())
    })
    .await;
}
