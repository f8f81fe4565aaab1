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

#[cfg(unix)]
struct Interrupts {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Interrupts {
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind).map_err(|e| {
                Error::new(Kind::Unavailable, "signals cannot be received").caused_by(e)
            })
        };
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
