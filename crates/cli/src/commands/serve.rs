//! `changefeed serve`

use std::collections::BTreeMap;
use std::time::Duration;

use changefeed::{CancellationToken, Changefeed, Remedy, Result, SweepGroup, require_current};
use tokio::task::JoinHandle;

use crate::args::Serve;
use crate::commands::deliver::deliver;
use crate::commands::watch;
use crate::connect;
use crate::output::Out;
use crate::{demo, signals};

/// How soon a sweep group that was added while we run gets its sweeper.
const LOOK_FOR_GROUPS: Duration = Duration::from_secs(2);

pub(crate) async fn run(
    database: &str,
    database_given: bool,
    args: Serve,
    out: &mut Out,
) -> Result<()> {
    let shutdown = signals::shutdown()?;
    if args.demo {
        let database = database_given.then_some(database);
        return demo::run(database, args.duration, out, shutdown).await;
    }
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    out.say("serving; Ctrl-C stops")?;
    // Whichever ends first with an error ends the others.
    let stop = shutdown.child_token();
    let (swept, delivered, watched) = tokio::join!(
        async {
            let ended = sweep_all(&db, stop.clone()).await;
            stop.cancel();
            ended
        },
        async {
            let ended = deliver(&db, &args.deliver, stop.clone()).await;
            stop.cancel();
            ended
        },
        async {
            let ended = watch::serve(&db, &args, stop.clone()).await;
            stop.cancel();
            ended
        }
    );
    swept?;
    delivered?;
    watched?;
    out.say("stopped")
}

/// Who we are among the instances: unique to this process.
pub(crate) fn instance() -> String {
    let host = gethostname::gethostname();
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis());
    format!(
        "{}/{}/{since:x}",
        host.to_string_lossy(),
        std::process::id()
    )
}

/// Runs a sweeper for every group that has shards, until told to stop.
async fn sweep_all(db: &Changefeed, shutdown: CancellationToken) -> Result<()> {
    let mut sweepers: BTreeMap<SweepGroup, JoinHandle<Result<()>>> = BTreeMap::new();
    let owner = instance();
    loop {
        if db.needs_sweeping() {
            match db.sweep_groups().await {
                Ok(groups) => {
                    for group in groups {
                        sweepers.entry(group).or_insert_with(|| {
                            let sweeper = db.sweeper(group, &owner);
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
        Err(
            changefeed::Error::new(changefeed::Kind::Database, "a sweeper broke down")
                .caused_by(error),
        )
    })
}
