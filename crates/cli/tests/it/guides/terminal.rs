//! A shell that a guide is typed into.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the shell says when a command has ended; no command says it.
const ENDED: &str = "\u{1}ended ";

pub(crate) struct Terminal {
    shell: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn open(directory: &Path) -> Terminal {
        let program = Path::new(env!("CARGO_BIN_EXE_changefeed"));
        let mut path = vec![program.parent().unwrap().to_owned()];
        if let Some(python) = std::env::var_os("CHANGEFEED_TEST_PYTHON") {
            path.push(Path::new(&python).parent().unwrap().to_owned());
        }
        if let Some(postgres) = std::env::var_os("CHANGEFEED_TEST_POSTGRES_BIN") {
            path.push(postgres.into());
        }
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        // Whoever runs the tests in the background has them ignore Ctrl-C, and Python would inherit that.
        let mut shell = Command::new("env")
            .args(["--default-signal=INT", "bash", "--noprofile", "--norc"])
            .current_dir(directory)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env_remove("CHANGEFEED_DB")
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("bash is there");
        let mut keyboard = shell.stdin.take().unwrap();
        let mut output = shell.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                shown.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        keyboard.write_all(b"exec 2>&1\n").unwrap();
        Terminal {
            shell,
            keyboard,
            screen,
        }
    }

    /// Types a command and returns what is seen when it has ended, or when it is `enough`.
    pub(crate) fn run(
        &mut self,
        command: &str,
        fails: bool,
        deadline: Instant,
        enough: impl Fn(&str) -> bool,
    ) -> Result<String, String> {
        self.screen.lock().unwrap().clear();
        // The command reads nothing from here: what is typed next is not for it.
        writeln!(
            self.keyboard,
            "{{ {command}\n}} </dev/null; printf '{ENDED}%s\\n' $?"
        )
        .unwrap();
        loop {
            let seen = self.seen();
            if let Some((seen, status)) = ended(&seen) {
                return match status {
                    code if (code == "0") != fails => Ok(seen.to_owned()),
                    code => Err(format!("$ {command}\nends with {code}:\n{seen}")),
                };
            }
            if enough(&seen) {
                return Ok(seen);
            }
            if Instant::now() > deadline {
                return Err(format!("$ {command}\ndoes not end; so far:\n{seen}"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Types Ctrl-C, and waits until the command has ended.
    pub(crate) fn interrupt(&self, deadline: Instant) -> Result<(), String> {
        let shell = self.shell.id();
        let children = format!("/proc/{shell}/task/{shell}/children");
        for child in std::fs::read_to_string(children).unwrap().split(' ') {
            if let Some(child) = child.parse().ok().and_then(Pid::from_raw) {
                rustix::process::kill_process(child, Signal::INT).unwrap();
            }
        }
        while ended(&self.seen()).is_none() {
            if Instant::now() > deadline {
                return Err("Ctrl-C does not end it".to_owned());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }
}

/// What a command that has ended has shown, and its status.
fn ended(seen: &str) -> Option<(&str, &str)> {
    let (seen, status) = seen.split_once(ENDED)?;
    Some((seen, status.strip_suffix('\n')?))
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // With everything that was started in it.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.shell), Signal::KILL);
        let _ = self.shell.wait();
    }
}
