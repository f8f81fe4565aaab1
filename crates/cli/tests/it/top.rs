//! `changefeed top` in a terminal of its own: it draws, it ends by a key and by a signal, and the
//! terminal is as it was; and without a terminal it prints.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend};
use changefeed_testkit::process::terminate;
use changefeed_testkit::run;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal with somebody in front of it.
struct Person {
    keyboard: File,
    terminal: File,
    screen: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl Person {
    fn new() -> Person {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&keyboard, size).unwrap();
        let path = ptsname(&keyboard, Vec::new()).unwrap();
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path.to_str().unwrap())
            .unwrap();
        let keyboard = File::from(keyboard);
        let (tell, screen) = channel();
        let mut reading = keyboard.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(count @ 1..) = reading.read(&mut buffer) {
                if tell.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Person {
            keyboard,
            terminal,
            screen,
            seen: Vec::new(),
        }
    }

    /// Starts a command in this terminal.
    fn start(&self, command: &mut Command) -> std::process::Child {
        let end = || Stdio::from(self.terminal.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        command.env("TERM", "xterm").spawn().unwrap()
    }

    fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            let left = PATIENCE.saturating_sub(began.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(more) => self.seen.extend(more),
                Err(_) => panic!("no '{text}' in {}", String::from_utf8_lossy(&self.seen)),
            }
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Whether what is typed appears line by line, as it does where nobody draws.
    fn is_as_usual(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

/// The sign that what was on the screen before is there again.
const AS_BEFORE: &str = "\x1b[?1049l";

fn top(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .arg("top")
        .args(args)
        .env("CHANGEFEED_DB", url)
        .env_remove("CHANGEFEED_CONFIG");
    command
}

async fn scene(backend: &Arc<dyn Backend>) {
    let (store, _) = backend.feed(37, 2).await;
    drop(store);
}

#[test]
fn it_draws_until_somebody_has_seen_enough() {
    run(async {
        let backends: [Arc<dyn Backend>; 2] = [
            Arc::new(SqliteBackend::fresh().await),
            Arc::new(PostgresBackend::fresh().await),
        ];
        for backend in backends {
            scene(&backend).await;
            type End = fn(&mut Person, u32);
            let ends: [End; 3] = [
                |person, _| person.press(b"\tjq"),
                |person, _| person.press(b"\x03"),
                |_, pid| terminate(pid),
            ];
            for end in ends {
                let mut person = Person::new();
                assert!(person.is_as_usual());
                let mut program = person.start(&mut top(&backend.url(), &["--interval", "50ms"]));
                person.wait_for("CHANGES/s");
                person.wait_for("q quits");
                assert!(!person.is_as_usual());
                end(&mut person, program.id());
                assert!(program.wait().unwrap().success());
                person.wait_for(AS_BEFORE);
                assert!(person.is_as_usual());
            }
        }
    });
}

/// What it draws is news: a change that is committed while somebody looks.
#[test]
fn what_happens_meanwhile_appears() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        scene(&backend).await;
        let mut person = Person::new();
        let mut program = person.start(&mut top(&backend.url(), &["--interval", "20ms"]));
        person.wait_for("CHANGES/s");
        let store = backend.store().await;
        let new = changefeed::NewFeed::new("newcomer".parse().unwrap());
        store.create_feed(&new).await.unwrap();
        person.wait_for("newcomer");
        person.press(b"q");
        assert!(program.wait().unwrap().success());
    });
}

#[test]
fn an_error_leaves_the_terminal_as_it_was() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        let mut person = Person::new();
        let mut program = person.start(&mut top(&backend.url(), &[]));
        person.wait_for("changefeed migrate");
        assert_eq!(program.wait().unwrap().code(), Some(1));
        assert!(person.is_as_usual());
    });
}

#[test]
fn without_a_terminal_one_look_is_printed() {
    run(async {
        let backends: [Arc<dyn Backend>; 2] = [
            Arc::new(SqliteBackend::fresh().await),
            Arc::new(PostgresBackend::fresh().await),
        ];
        for backend in backends {
            scene(&backend).await;
            let url = backend.url();
            let out = |args: &[&str]| {
                let output = top(&url, args).stdin(Stdio::null()).output().unwrap();
                let code = output.status.code().unwrap();
                let out = String::from_utf8(output.stdout).unwrap();
                (code, out, String::from_utf8(output.stderr).unwrap())
            };
            let (code, text, errors) = out(&["--once", "--interval", "10ms"]);
            assert_eq!((code, &*errors), (0, ""));
            assert!(text.starts_with("changefeed "), "{text}");
            assert_eq!(text.matches("FEEDS").count(), 1, "{text}");
            assert!(
                !text.contains('\x1b') && !text.contains("q quits"),
                "{text}"
            );
            let (code, text, errors) = out(&["--json", "--interval", "10ms"]);
            assert_eq!((code, &*errors), (0, ""));
            let frame: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(frame["feeds"][0]["shards"].as_array().unwrap().len(), 2);
            let (code, _, errors) = out(&[]);
            assert_eq!(
                (code, &*errors),
                (
                    2,
                    "error: there is no terminal to draw on\n  \
                     hint: add --once to print one look, or --json for a program\n"
                )
            );
            assert_eq!(out(&["--interval", "0s"]).0, 2);
        }
    });
}
