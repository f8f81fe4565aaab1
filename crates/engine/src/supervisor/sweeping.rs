//! A sweeper for every sweep group, and who trims what they have numbered.

use std::collections::BTreeMap;
use std::time::Duration;

use changefeed_core::{Error, Kind, Remedy, Result, SweepGroup};
use tokio::task::JoinHandle;

use crate::{CancellationToken, Changefeed, run_trimmer};

/// How soon a sweep group that was added while we run gets its sweeper.
const LOOK_FOR_GROUPS: Duration = Duration::from_secs(2);

/// Runs a sweeper for every group that has shards, and trims, until told to stop.
pub(super) async fn sweep(db: &Changefeed, owner: &str, shutdown: CancellationToken) -> Result<()> {
    let trimmer = async {
        let ended = run_trimmer(db.store().clone(), owner.to_owned(), shutdown.clone()).await;
        if let Err(error) = ended {
            // Whoever may sweep need not be allowed to trim.
            tracing::warn!(%error, "this instance does not trim feeds");
        }
        std::future::pending().await
    };
    tokio::select! {
        ended = sweep_groups(db, owner, shutdown.clone()) => ended,
        ended = trimmer => ended,
    }
}

async fn sweep_groups(db: &Changefeed, owner: &str, shutdown: CancellationToken) -> Result<()> {
    let mut sweepers: BTreeMap<SweepGroup, JoinHandle<Result<()>>> = BTreeMap::new();
    loop {
        if db.needs_sweeping() {
            match db.sweep_groups().await {
                Ok(groups) => {
                    for group in groups {
                        sweepers.entry(group).or_insert_with(|| {
                            let sweeper = db.sweeper(group, owner);
                            let stop = shutdown.clone();
                            tokio::spawn(async move { sweeper.run(|_| {}, stop).await.map(drop) })
                        });
                    }
                }
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(%error, "cannot look for sweep groups; trying again");
                }
                Err(error) => return Err(error),
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(LOOK_FOR_GROUPS) => {}
        }
        // A sweeper ends by itself only with an error that a person has to mend.
        let ended: Vec<SweepGroup> = sweepers
            .iter()
            .filter(|(_, s)| s.is_finished())
            .map(|(g, _)| *g)
            .collect();
        for group in ended {
            if let Some(sweeper) = sweepers.remove(&group) {
                joined(sweeper).await?;
            }
        }
    }
    for (_, sweeper) in sweepers {
        joined(sweeper).await?;
    }
    Ok(())
}

async fn joined(sweeper: JoinHandle<Result<()>>) -> Result<()> {
    sweeper.await.unwrap_or_else(|error| {
        Err(Error::new(Kind::Database, "a sweeper broke down").caused_by(error))
    })
}
