//! A command that gets each batch as JSON on its standard input. Exit 0 is success, but for the rows that it says
//! have failed, on its standard output.

use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{Batch, BatchFormat, WatchName, batch_json, format_span};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout, Command};

use crate::{Handled, WatchFunction};

/// How much of what a command says on standard error is kept with rows that fail.
const KEPT: usize = 2000;
/// The largest answer that is read.
const ANSWER: usize = 1024 * 1024;

/// Runs a shell command per batch.
#[derive(Debug, Clone)]
pub struct Exec {
    command: String,
    name: WatchName,
    format: BatchFormat,
    timeout: Duration,
}

impl Exec {
    /// A command, as a shell understands it, which is ended if a batch takes it longer than this.
    pub fn new(
        command: impl Into<String>,
        name: &WatchName,
        format: BatchFormat,
        timeout: Duration,
    ) -> Self {
        Exec {
            command: command.into(),
            name: name.clone(),
            format,
            timeout,
        }
    }
}

#[async_trait]
impl WatchFunction for Exec {
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        // What is dropped is ended.
        let ended = tokio::time::timeout(self.timeout, self.run(batch)).await;
        ended.unwrap_or_else(|_| {
            let limit = format_span(self.timeout);
            Err(format!(
                "it had not ended after {limit}, and was ended with everything that it had started"
            ))
        })
    }
}

impl Exec {
    async fn run(&self, batch: &Batch) -> Result<Handled, String> {
        let mut input = batch_json(&batch.changes, self.format).map_err(|e| e.to_string())?;
        input.push('\n');
        let attempt = batch.attempt.to_string();
        let environment = [
            ("CHANGEFEED_ATTEMPT", attempt.as_str()),
            ("CHANGEFEED_WATCH", self.name.as_str()),
        ];
        let output = Mutex::new(Vec::new());
        run(&self.command, &environment, input.as_bytes(), Some(&output)).await?;
        let said = output.into_inner().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let handled = Handled::read(&said)?;
        if handled.is_all() {
            // It was no answer, or one that need not have been given.
            let _ = tokio::io::stdout().write_all(said.as_bytes()).await;
        }
        Ok(handled)
    }
}

/// Runs a command with this on its standard input. Dropping this ends it with everything that it has started.
/// If it says an object of JSON on its standard output, that is put aside; anything else is passed on.
pub(super) async fn run(
    command_line: &str,
    environment: &[(&str, &str)],
    input: &[u8],
    answer: Option<&Mutex<Vec<u8>>>,
) -> Result<(), String> {
    {
        let mut command = shell(command_line);
        command
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        if answer.is_some() {
            command.stdout(Stdio::piped());
        }
        let child = command
            .spawn()
            .map_err(|e| format!("'{command_line}' cannot be started: {e}"))?;
        let mut group = Group { child };
        let (stdin, stderr) = (group.child.stdin.take(), group.child.stderr.take());
        let stdout = group.child.stdout.take();
        let hear = async {
            if let (Some(stdout), Some(answer)) = (stdout, answer) {
                hear(stdout, answer).await;
            }
        };
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command need not read everything.
                let _ = stdin.write_all(input).await;
                let _ = stdin.shutdown().await;
            }
        };
        let listen = async {
            let mut kept = Vec::new();
            if let Some(mut stderr) = stderr {
                let mut chunk = [0_u8; 4096];
                while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
                    let _ = tokio::io::stderr().write_all(&chunk[..n]).await;
                    kept.extend_from_slice(&chunk[..n]);
                    let surplus = kept.len().saturating_sub(KEPT);
                    kept.drain(..surplus);
                }
            }
            kept
        };
        let wait = group.child.wait();
        // The command has ended when it has; a child of its own may keep its output open.
        let mut talk = std::pin::pin!(futures_util::future::join3(feed, listen, hear));
        let mut wait = std::pin::pin!(wait);
        let mut said = None;
        let status = loop {
            tokio::select! {
                ((), kept, ()) = &mut talk, if said.is_none() => said = Some(kept),
                status = &mut wait => break status,
            }
        };
        let status = status.map_err(|e| format!("'{command_line}' was lost: {e}"))?;
        if said.is_none() {
            let rest = tokio::time::timeout(Duration::from_millis(200), talk).await;
            said = rest.ok().map(|((), kept, ())| kept);
        }
        if status.success() {
            return Ok(());
        }
        let said = said.unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        Err(match said.trim() {
            "" => status.to_string(),
            words => format!("{status}: {words}"),
        })
    }
}

/// Listens to what a command says: the first character tells whether it is an answer.
async fn hear(mut stdout: ChildStdout, answer: &Mutex<Vec<u8>>) {
    let mut chunk = [0_u8; 4096];
    let mut is_answer = None;
    while let Ok(n @ 1..) = stdout.read(&mut chunk).await {
        let heard = &chunk[..n];
        if is_answer.is_none() {
            let first = heard.iter().find(|byte| !byte.is_ascii_whitespace());
            is_answer = first.map(|byte| *byte == b'{');
        }
        if is_answer == Some(true) {
            let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
            let free = ANSWER.saturating_sub(answer.len());
            answer.extend_from_slice(&heard[..n.min(free)]);
        } else {
            let _ = tokio::io::stdout().write_all(heard).await;
            let _ = tokio::io::stdout().flush().await;
        }
    }
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    // A group of its own, so that it can be ended with everything it has started.
    shell.arg("-c").arg(command).process_group(0);
    shell.kill_on_drop(true);
    shell
}

#[cfg(not(unix))]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.arg("/C").arg(command).kill_on_drop(true);
    shell
}

/// A running command; dropping it ends it with everything it has started.
struct Group {
    child: Child,
}

impl Drop for Group {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(pid) = self
            .child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// `--timeout` was for webhooks only.
    #[tokio::test]
    async fn a_command_that_takes_too_long_is_ended() {
        let brief = Duration::from_millis(50);
        let exec = exec("sleep 600", brief);
        let said = exec.call(&batch()).await.unwrap_err();
        assert!(said.starts_with("it had not ended after 50ms"), "{said}");
    }

    fn batch() -> Batch {
        Batch::leased(1, (1, 1), 3, Instant::now())
    }

    fn exec(command: impl Into<String>, timeout: Duration) -> Exec {
        let name = "mail".parse().unwrap();
        Exec::new(command, &name, BatchFormat::default(), timeout)
    }

    #[tokio::test]
    async fn exit_0_is_success_and_anything_else_is_kept_with_what_was_said() {
        let call = async |command: &str| exec(command, LONG).call(&batch()).await;
        let all = Ok(Handled::all());
        assert_eq!(call("test \"$(cat)\" = '[]'").await, all);
        assert_eq!(call("test $CHANGEFEED_ATTEMPT = 3").await, all);
        assert_eq!(call("test $CHANGEFEED_WATCH = mail").await, all);
        assert_eq!(
            call("echo no room >&2; exit 3").await,
            Err("exit status: 3: no room".into())
        );
        assert_eq!(call("exit 1").await, Err("exit status: 1".into()));
        // One that reads nothing, and one that leaves a child behind.
        assert_eq!(call("exec < /dev/null").await, all);
        assert_eq!(call("sleep 5 >&2 & exit 0").await, all);
    }

    #[tokio::test]
    async fn a_command_says_which_rows_have_failed() {
        let call = async |command: &str| exec(command, LONG).call(&batch()).await;
        let some = Ok(Handled::except([(1, "no such address")]));
        let answer = r#"echo '{"failed": [{"index": 1, "error": "no such address"}]}'"#;
        assert_eq!(call(answer).await, some);
        // One that leaves a child behind which keeps the output open, and one that talks.
        assert_eq!(call(&format!("sleep 5 & {answer}")).await, some);
        assert_eq!(call("echo '{\"sent\": 5}'").await, Ok(Handled::all()));
        assert_eq!(call("echo all went well").await, Ok(Handled::all()));
        let unclear = call("echo '{\"failed\": [\"first\"]}'").await.unwrap_err();
        assert!(
            unclear.starts_with("its answer cannot be read"),
            "{unclear}"
        );
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_dropped_call_ends_the_command_and_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let waits = format!("sleep 600 & echo $! > {}; wait", file.display());
        let exec = exec(waits, LONG);
        let pid = {
            let batch = batch();
            let mut call = exec.call(&batch);
            loop {
                let step = Duration::from_millis(5);
                let _ = tokio::time::timeout(step, &mut call).await;
                if let Ok(pid) = std::fs::read_to_string(&file)
                    && let Ok(pid) = pid.trim().parse::<i32>()
                {
                    break pid;
                }
            }
        };
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        while rustix::process::test_kill_process(pid).is_ok() {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            if stat.is_ok_and(|s| s.contains(") Z ")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
