//! Ctrl-C and SIGTERM, as a token that every loop understands.

use std::time::Duration;

use changefeed::{CancellationToken, Error, Kind, Result};

/// A token that is cancelled by the first Ctrl-C or SIGTERM. Another one, a second or more later,
/// ends the process; until then it may be the same one, sent to the process and to its group.
pub(crate) fn shutdown() -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let cancel = token.clone();
    let mut interrupts = Interrupts::new()?;
    tokio::spawn(async move {
        interrupts.next().await;
        cancel.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Ok(mut again) = Interrupts::new() {
            again.next().await;
            std::process::exit(130);
        }
    });
    Ok(token)
}

/// SIGHUP, which ends nothing from the moment that this is made.
#[cfg(unix)]
pub(crate) struct Hangups {
    signal: tokio::signal::unix::Signal,
    had_terminal: bool,
}

#[cfg(unix)]
impl Hangups {
    pub(crate) fn new() -> Result<Self> {
        use std::io::IsTerminal;
        Ok(Hangups {
            signal: listen(tokio::signal::unix::SignalKind::hangup())?,
            had_terminal: std::io::stdin().is_terminal(),
        })
    }

    /// Calls this at every SIGHUP, until told to stop. One that comes because the terminal has gone, where
    /// the program was started, stops it like Ctrl-C.
    pub(crate) async fn each(mut self, shutdown: CancellationToken, mut reload: impl FnMut()) {
        use std::io::IsTerminal;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = self.signal.recv() => {}
            }
            if self.had_terminal && !std::io::stdin().is_terminal() {
                shutdown.cancel();
                return;
            }
            reload();
        }
    }
}

#[cfg(not(unix))]
pub(crate) struct Hangups;

#[cfg(not(unix))]
impl Hangups {
    pub(crate) fn new() -> Result<Self> {
        Ok(Hangups)
    }

    pub(crate) async fn each(self, _: CancellationToken, _: impl FnMut()) {}
}

#[cfg(unix)]
fn listen(kind: tokio::signal::unix::SignalKind) -> Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(kind)
        .map_err(|e| Error::new(Kind::Unavailable, "signals cannot be received").caused_by(e))
}

#[cfg(unix)]
struct Interrupts {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Interrupts {
    fn new() -> Result<Self> {
        use tokio::signal::unix::SignalKind;
        Ok(Interrupts {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Interrupts;

#[cfg(not(unix))]
impl Interrupts {
    fn new() -> Result<Self> {
        Ok(Interrupts)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
