//! The watches that are defined in the database.

use std::collections::BTreeMap;
use std::time::Duration;

use changefeed_core::{Error, Kind, Remedy, Result, Watch, WatchDefinition, WatchName, WatchSpec};
use tokio::task::JoinHandle;

use super::InstanceOptions;
use crate::sinks::batch_sink;
use crate::{CancellationToken, Changefeed, Watcher};

/// How soon a watch that was defined while we run is run.
const LOOK_FOR_WATCHES: Duration = Duration::from_secs(2);

/// Runs every watch that is defined in the database, until told to stop.
pub(super) async fn watch(
    db: &Changefeed,
    options: &InstanceOptions,
    shutdown: CancellationToken,
) -> Result<()> {
    if let Err(error) = db.remove_left_watches().await {
        tracing::debug!(%error, "watches that were left behind are not removed");
    }
    let mut running: BTreeMap<WatchName, Running> = BTreeMap::new();
    loop {
        match db.store().watches().await {
            Ok(watches) => {
                let defined: BTreeMap<WatchName, _> = watches
                    .into_iter()
                    .filter_map(|w| Some((w.name.clone(), (w.definition.clone()?, w))))
                    .collect();
                // A definition that was changed or dropped ends what runs by it.
                running.retain(|name, run| {
                    let same = defined.get(name).is_some_and(|(d, _)| *d == run.definition);
                    if !same || run.task.is_finished() {
                        run.stop.cancel();
                    }
                    same && !run.task.is_finished()
                });
                for (name, (definition, watch)) in defined {
                    running.entry(name).or_insert_with(|| {
                        let stop = shutdown.child_token();
                        let task = tokio::spawn(run_defined(
                            db.clone(),
                            watch,
                            definition.clone(),
                            options.clone(),
                            stop.clone(),
                        ));
                        Running {
                            definition,
                            stop,
                            task,
                        }
                    });
                }
            }
            Err(error) if error.kind().remedy() == Remedy::Retry => {
                tracing::warn!(%error, "cannot look for watches; trying again");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(LOOK_FOR_WATCHES) => {}
        }
    }
    for (_, run) in running {
        let _ = run.task.await;
    }
    Ok(())
}

struct Running {
    definition: WatchDefinition,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Runs one watch. One that cannot run must not stop the others, so its error is only told; it is
/// started again later.
async fn run_defined(
    db: Changefeed,
    watch: Watch,
    definition: WatchDefinition,
    options: InstanceOptions,
    stop: CancellationToken,
) {
    let name = watch.name.clone();
    let ended = async {
        if definition.sink.is_local() && !options.allow_exec {
            // Otherwise everybody who may write to the database could run commands here.
            return Err(
                Error::new(Kind::Permission, "watches may not act on this machine")
                    .advise("start `changefeed serve --allow-exec`"),
            );
        }
        let Some(function) = batch_sink(&watch.name, &definition, options.webhooks)? else {
            return Ok(());
        };
        let spec = WatchSpec {
            // What was read about it may be old.
            existing: true,
            ..WatchSpec::by(watch.name.clone(), watch.table.clone(), &definition)
        };
        let watch = db.store().open_watch(&spec).await?;
        Watcher::new(db.store().clone(), watch, definition.settings, options.name)
            .filter(&definition.filter, definition.format())?
            .run(&*function, stop.clone())
            .await
            .map(drop)
    };
    if let Err(error) = ended.await {
        // Somebody has dropped it: that is how it is to end.
        let left = db.store().watches().await;
        if error.kind() == Kind::NotFound
            && left.is_ok_and(|watches| watches.iter().all(|w| w.name != name))
        {
            tracing::info!(watch = %name, "this watch was dropped");
            return;
        }
        let advice = error.advice().unwrap_or_default();
        tracing::error!(watch = %name, %error, advice, "this watch does not run; trying again");
        let _ = tokio::time::timeout(Duration::from_secs(30), stop.cancelled()).await;
    }
}
