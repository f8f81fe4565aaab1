//! Other processes, and what may happen to them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal; a process that is gone already is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Asks a process to stop.
pub fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

/// Whether a process exists and is not a zombie waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if rustix::process::test_kill_process(raw).is_err() {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !matches!(state_and_parent(&stat), Some(("Z" | "X", _))),
        Err(_) => !Path::new("/proc/self/stat").exists(),
    }
}

/// The direct children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    if let Ok(entries) = std::fs::read_dir("/proc")
        && Path::new("/proc/self/stat").exists()
    {
        return entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|candidate| {
                std::fs::read_to_string(format!("/proc/{candidate}/stat"))
                    .ok()
                    .and_then(|stat| state_and_parent(&stat).map(|(_, parent)| parent == pid))
                    .unwrap_or(false)
            })
            .collect();
    }
    // No /proc: macOS and the BSDs have pgrep in their base system.
    Command::new("pgrep")
        .args(["-P", &pid.to_string()])
        .output()
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}

/// Reads `pid (name) state ppid …`, where the name may contain anything.
fn state_and_parent(stat: &str) -> Option<(&str, u32)> {
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?, words.next()?.parse().ok()?))
}

/// A shell that is told of every process we start and of its end, and kills what is left when its
/// input closes, which the kernel does for us even if we are killed.
static UNDERTAKER: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    const SCRIPT: &str = r#"
        trap '' INT TERM HUP
        all=
        while read -r word; do
            case $word in
                +*) all="$all ${word#+}" ;;
                -*) left=
                    for pid in $all; do [ "$pid" = "${word#-}" ] || left="$left $pid"; done
                    all=$left ;;
            esac
        done
        for pid in $all; do kill -9 "$pid"; done
    "#;
    let shell = Command::new("sh")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Not in our group, so that a Ctrl-C at the terminal does not reach it.
        .process_group(0)
        .spawn()
        .unwrap();
    Mutex::new(shell)
});

fn tell_undertaker(sign: char, pid: u32) {
    let mut undertaker = UNDERTAKER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(input) = &mut undertaker.stdin {
        let _ = writeln!(input, "{sign}{pid}");
    }
}

/// A process of ours that does not outlive its owner, nor this process.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts a command without input.
    pub fn start(command: &mut Command) -> Self {
        Running::spawn(command.stdin(Stdio::null()))
    }

    /// Starts a command that is fed through its standard input.
    pub fn start_with_input(command: &mut Command) -> Self {
        Running::spawn(command.stdin(Stdio::piped()))
    }

    fn spawn(command: &mut Command) -> Self {
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        tell_undertaker('+', child.id());
        Running { child }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its handle, for whoever wants its output.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until it has said this on its standard output, which must be piped. A process that
    /// serves ends when its database is away as it starts; from these words on it does not.
    pub fn heard(mut self, words: &str) -> Self {
        let mut output = BufReader::new(self.child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let read = output.read_line(&mut line).unwrap();
            assert!(read > 0, "the process ended before it said '{words}'");
        }
        // It stays open: whoever prints into a closed pipe fails.
        self.child.stdout = Some(output.into_inner());
        self
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Freezes it, as a paused virtual machine would be.
    pub fn freeze(&self) {
        signal(self.pid(), Signal::STOP);
    }

    /// Wakes a frozen one.
    pub fn thaw(&self) {
        signal(self.pid(), Signal::CONT);
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end, at most `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                began.elapsed() < deadline,
                "the process did not end within {deadline:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        tell_undertaker('-', self.pid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_frozen_woken_and_killed() {
        let mut process = Running::start(Command::new("sleep").arg("600"));
        assert!(is_alive(process.pid()));
        assert!(children(std::process::id()).contains(&process.pid()));
        process.freeze();
        process.thaw();
        assert!(process.ended().is_none());
        process.kill();
        assert!(process.ended().is_some());
        assert!(!is_alive(process.pid()));
    }
}
