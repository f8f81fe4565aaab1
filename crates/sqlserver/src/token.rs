//! Access tokens of Azure (Entra), instead of a user and a password.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{Error, Kind, Result};
use tokio::process::Command;
use tokio::sync::Mutex;

/// Holds an access token.
pub(crate) const VARIABLE: &str = "CHANGEFEED_SQLSERVER_ACCESS_TOKEN";
/// Holds a command that prints one. In the environment alone: a URL may come from a file that others write, and must not
/// run anything.
pub(crate) const COMMAND: &str = "CHANGEFEED_SQLSERVER_ACCESS_TOKEN_COMMAND";

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// For so long what it has printed is used again: the connections of a pool are opened together, and each start of such a
/// program takes seconds. A token that it prints lives for longer.
const FRESH: Duration = Duration::from_secs(60);

/// Where an access token is. It is read for each connection: tokens live for an hour, and whoever
/// renews them does so meanwhile.
#[derive(Debug, Clone)]
pub(crate) enum Token {
    Variable,
    File(String),
    Command(String, Printed),
}

/// What a command has printed, and when. Shared by the connections of a store.
#[derive(Clone, Default)]
pub(crate) struct Printed(Arc<Mutex<Option<(Instant, String)>>>);

impl std::fmt::Debug for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Printed")
    }
}

impl Token {
    /// The one that the environment has, if it has one.
    pub(crate) fn of_environment() -> Option<Token> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        match set(VARIABLE) {
            Some(_) => Some(Token::Variable),
            None => set(COMMAND).map(|command| Token::Command(command, Printed::default())),
        }
    }

    pub(crate) async fn read(&self) -> Result<String> {
        let token = match self {
            Token::Variable => {
                std::env::var(VARIABLE).map_err(|e| missing(VARIABLE).caused_by(e))?
            }
            Token::File(path) => {
                std::fs::read_to_string(path).map_err(|e| missing(path).caused_by(e))?
            }
            Token::Command(command, Printed(printed)) => {
                let mut printed = printed.lock().await;
                match &*printed {
                    Some((at, token)) if at.elapsed() < FRESH => token.clone(),
                    _ => {
                        let token = print(command).await?;
                        *printed = Some((Instant::now(), token.clone()));
                        token
                    }
                }
            }
        };
        Ok(token.trim().to_owned())
    }
}

fn missing(place: &str) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("there is no access token in {place}"),
    )
    .advise("put a token for https://database.windows.net there, and renew it in time")
}

/// Runs the command, whose words are never repeated: they may hold a secret.
async fn print(command: &str) -> Result<String> {
    let failed = |why: String| {
        Error::new(
            Kind::Unavailable,
            format!("the command in {COMMAND} gave no access token: {why}"),
        )
        .advise("run it by hand: it must print a token for https://database.windows.net and nothing else")
    };
    let (shell, flag) = match cfg!(windows) {
        true => ("cmd", "/C"),
        false => ("sh", "-c"),
    };
    let running = Command::new(shell)
        .args([flag, command])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, running)
        .await
        .map_err(|_| {
            failed(format!(
                "it took longer than {} seconds",
                PATIENCE.as_secs()
            ))
        })?
        .map_err(|e| failed("it cannot be started".to_owned()).caused_by(e))?;
    let token = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match (output.status.success(), token.is_empty()) {
        (true, false) => Ok(token),
        (true, true) => Err(failed("it printed nothing".to_owned())),
        (false, _) => Err(failed(format!("it ended with {}", output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[tokio::test]
    async fn a_command_prints_a_token_that_is_used_for_a_while() {
        let count = tempfile();
        let command = format!("echo x >> {0}; wc -l < {0}", count.display());
        let token = Token::Command(command, Printed::default());
        assert_eq!(token.read().await.unwrap(), "1");
        assert_eq!(token.clone().read().await.unwrap(), "1");
        std::fs::remove_file(&count).unwrap();
        for (command, why) in [
            ("echo secret; false", "ended with"),
            ("true", "printed nothing"),
        ] {
            let token = Token::Command(command.to_owned(), Printed::default());
            let error = token.read().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.message().contains(why), "{error}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
    }

    #[cfg(unix)]
    fn tempfile() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("changefeed-token-count-{}", std::process::id()))
    }
}
