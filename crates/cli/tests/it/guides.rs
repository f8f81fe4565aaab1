//! Every guide in `docs/guides/`, and what is said about the examples, typed into a shell as a reader would, with what it shows compared.
//!
//! What the fences of a guide mean:
//!
//! - `console`: lines that begin with `$ ` are typed, the lines below are what must be seen. `…` stands
//!   for anything, on a line of its own for any number of lines. Nothing below: anything may be seen. A
//!   command that shows `error:` must fail, all others must not.
//! - `console terminal=2`: the same in another terminal, where a command may go on running, until `^C` if
//!   that is what comes last.
//! - `console eventually`: typed again until it shows what it should; for what happens by itself.
//! - `python receiver.py`, or any other language and a name: a file that the reader saves.
//!
//! Other fences are only shown. Addresses are the reader's: `postgres://app:secret@localhost/shop` is a
//! fresh database, and every port of localhost a free one.

mod guide;
mod terminal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, PostgresBackend};

use guide::{Command, Guide, Step, agrees};
use terminal::Terminal;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn outbox() {
    follow("outbox.md");
}

#[test]
fn webhook() {
    follow("webhook.md");
}

#[test]
fn exactly_once() {
    follow("exactly-once.md");
}

#[test]
fn scaling_out() {
    follow("scaling-out.md");
}

#[test]
fn moving() {
    follow("moving.md");
}

#[test]
fn without_our_program() {
    follow("without-our-program.md");
}

#[test]
fn examples() {
    follow("../../examples/README.md");
}

/// `./test` says in its summary which of these were not there.
fn has(program: &str, version: &str) -> bool {
    let found = std::process::Command::new(program).arg(version).output();
    if found.is_err() {
        eprintln!("not run: there is no {program}");
    }
    found.is_ok()
}

#[test]
fn examples_on_node() {
    if has("node", "--version") {
        follow("../../examples/node.md");
    }
}

#[test]
fn examples_in_go() {
    if has("go", "version") {
        follow("../../examples/go.md");
    }
}

#[test]
fn every_guide_is_followed() {
    let here = include_str!("guides.rs");
    for file in std::fs::read_dir(guides()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(
            here.contains(&format!("follow(\"{name}\")")),
            "nobody follows {name}"
        );
    }
}

fn guides() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides")
}

fn follow(name: &str) {
    let text = std::fs::read_to_string(guides().join(name)).unwrap();
    changefeed_testkit::run(async {
        let backend = PostgresBackend::fresh().await;
        let url = backend.url();
        let text = guide::at_home(&text, &url);
        // A guide is typed: that blocks, and the database is only needed to be there.
        tokio::task::spawn_blocking(move || type_all(&Guide::parse(&text)))
            .await
            .unwrap();
    });
}

fn type_all(guide: &Guide) {
    let desk = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::os::unix::fs::symlink(examples, desk.path().join("examples")).unwrap();
    let mut terminals = BTreeMap::new();
    for step in &guide.steps {
        match step {
            Step::Save { name, text } => std::fs::write(desk.path().join(name), text).unwrap(),
            Step::Type {
                terminal,
                eventually,
                commands,
            } => {
                let shell = terminals
                    .entry(*terminal)
                    .or_insert_with(|| Terminal::open(desk.path()));
                let deadline = Instant::now() + PATIENCE;
                let mut once = || {
                    commands
                        .iter()
                        .try_for_each(|command| enter(shell, command, *terminal > 1, deadline))
                };
                while let Err(difference) = once() {
                    let again = *eventually && Instant::now() < deadline;
                    assert!(again, "{difference}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }
}

/// Types a command and compares. One that may go on running is left alone when it has shown enough.
fn enter(
    shell: &mut Terminal,
    command: &Command,
    may_run_on: bool,
    deadline: Instant,
) -> Result<(), String> {
    let shows = &command.shows;
    let enough = |seen: &str| may_run_on && !shows.is_empty() && agrees(shows, seen);
    let seen = shell.run(&command.typed, command.fails(), deadline, enough)?;
    if command.interrupted {
        shell.interrupt(deadline)?;
    }
    if shows.is_empty() || agrees(shows, &seen) {
        return Ok(());
    }
    let (typed, shows) = (&command.typed, shows.join("\n"));
    Err(format!("$ {typed}\nshows\n{seen}\nand not\n{shows}"))
}
