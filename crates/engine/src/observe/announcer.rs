//! Tells the other instances that this one is there, and what it has done.

use std::sync::Arc;
use std::time::Duration;

use crate::{CancellationToken, Changefeed};
use changefeed_core::Announcement;

use super::meters::Meters;

/// How often an instance shows itself.
const EVERY: Duration = Duration::from_secs(5);
/// One that was not heard of for this long is forgotten.
const FORGET: Duration = Duration::from_secs(30);

/// What an instance says about itself.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Its name; unique to it.
    pub name: String,
    /// What it does.
    pub roles: Vec<String>,
    /// Where its HTTP server listens.
    pub address: Option<String>,
}

/// Announces this instance until told to stop, and then says goodbye. Nothing depends on it, so
/// nothing fails if it does.
pub async fn announce(
    db: Changefeed,
    who: Introduction,
    meters: Arc<Meters>,
    shutdown: CancellationToken,
) {
    loop {
        let announcement = Announcement {
            name: who.name.clone(),
            roles: who.roles.clone(),
            address: who.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tallies: meters.tallies(),
        };
        if let Err(error) = db.store().announce(&announcement, FORGET).await {
            tracing::debug!(%error, "this instance could not be announced");
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    let goodbye = db.store().withdraw(&who.name);
    let _ = tokio::time::timeout(Duration::from_secs(2), goodbye).await;
}
