//! `changefeed watch TABLE`, and the watches of `changefeed serve`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use changefeed::{
    Batch, BatchFormat, CancellationToken, Changefeed, Error, Exec, Kind, PostBatches, Remedy,
    Result, Sink, WatchDefinition, WatchFunction, WatchName, WatchSpec, Watcher, WebhookClient,
    WebhookOptions, batch_json, require_current,
};
use tokio::task::JoinHandle;

use super::definition;
use crate::args::{Serve, WatchRun};
use crate::commands::serve::instance;
use crate::output::Out;
use crate::signals;

/// How soon a watch that was defined while we serve is run.
const LOOK_FOR_WATCHES: Duration = Duration::from_secs(2);

pub(super) async fn run(db: &Changefeed, args: WatchRun, out: &mut Out) -> Result<()> {
    let Some(table) = args.table else {
        return Err(crate::usage("watch what?")
            .advise("name a table and a function: changefeed watch orders --name mail"));
    };
    let Some(name) = args.name else {
        return Err(crate::usage("the function has no name")
            .advise("add --name FUNCTION: it goes on where it was when it is started again"));
    };
    require_current(db.schema().await?)?;
    let settings = args.settings.settings();
    settings.validate()?;
    let webhooks = WebhookOptions {
        variables: args.variables,
        ..WebhookOptions::default()
    };
    let target = &args.target;
    let format = BatchFormat {
        version: target.with_version,
        columns: target.with_columns,
    };
    let spec = WatchSpec {
        from: args.from,
        columns: target.with_columns,
        max_changes_per_worker: target.max_changes_per_worker,
        ..WatchSpec::new(name.clone(), db.table(&table)?)
    };
    // Without a place to go to, batches are printed.
    let function = match definition(args.target, &args.settings)? {
        Some(definition) => function_of(&name, &definition, webhooks)?,
        None => None,
    };
    let watch = db.store().open_watch(&spec).await?;
    let shutdown = signals::shutdown()?;
    let watcher = Watcher::new(db.store().clone(), watch, settings, instance());
    let totals = match function {
        Some(function) => watcher.run(&*function, shutdown).await?,
        None => {
            let print = Print {
                out: Mutex::new(out),
                format,
            };
            watcher.run(&print, shutdown).await?
        }
    };
    tracing::info!(
        batches = totals.batches,
        changes = totals.changes,
        failed = totals.failed,
        "stopped"
    );
    Ok(())
}

/// What a definition wants to be done; nothing if a program that uses the library does it.
fn function_of(
    name: &WatchName,
    definition: &WatchDefinition,
    webhooks: WebhookOptions,
) -> Result<Option<Box<dyn WatchFunction>>> {
    match &definition.sink {
        Sink::Webhook(_) => {
            let variables = webhooks.variables.clone();
            let client = WebhookClient::new(webhooks)?;
            let post = PostBatches::prepare(client, name, definition, &variables)?;
            Ok(Some(Box::new(post)))
        }
        Sink::Exec(command) => Ok(Some(Box::new(Exec::new(command, definition.format())))),
        Sink::InProcess => Ok(None),
    }
}

/// Prints each change on a line of its own.
struct Print<'a> {
    out: Mutex<&'a mut Out>,
    format: BatchFormat,
}

#[async_trait::async_trait]
impl WatchFunction for Print<'_> {
    async fn call(&self, batch: &Batch) -> Result<(), String> {
        let lines: Result<Vec<String>> = batch
            .changes
            .iter()
            .map(|change| batch_json(std::slice::from_ref(change), self.format))
            .collect();
        let lines = lines.map_err(|e| e.to_string())?;
        let mut out = self
            .out
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for (change, line) in batch.changes.iter().zip(lines) {
            let printed = if out.is_json() {
                out.line(line.trim_start_matches('[').trim_end_matches(']'))
            } else {
                out.line(format!("{}  {}", change.operation, change.item.get()))
            };
            printed.map_err(|e| e.to_string())?;
        }
        out.flush().map_err(|e| e.to_string())
    }
}

/// Runs every watch that is defined in the database, until told to stop.
pub(crate) async fn serve(
    db: &Changefeed,
    args: &Serve,
    owner: &str,
    shutdown: CancellationToken,
) -> Result<()> {
    let terms = Terms {
        owner: owner.to_owned(),
        allow_exec: args.allow_exec,
        webhooks: args.deliver.webhooks()?,
    };
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
                            terms.clone(),
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

/// What watches may do here.
#[derive(Clone)]
struct Terms {
    owner: String,
    allow_exec: bool,
    webhooks: WebhookOptions,
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
    watch: changefeed::Watch,
    definition: WatchDefinition,
    terms: Terms,
    stop: CancellationToken,
) {
    let name = watch.name.clone();
    let ended = async {
        if matches!(definition.sink, Sink::Exec(_)) && !terms.allow_exec {
            // Whoever may write to the database would otherwise run commands here.
            return Err(
                Error::new(Kind::Permission, "commands of watches are not run here")
                    .advise("start `changefeed serve --allow-exec`"),
            );
        }
        let Some(function) = function_of(&watch.name, &definition, terms.webhooks)? else {
            return Ok(());
        };
        let spec = WatchSpec {
            // What was read about it may be old.
            existing: true,
            columns: definition.with_columns,
            max_changes_per_worker: definition.max_changes_per_worker,
            ..WatchSpec::new(watch.name.clone(), watch.table.clone())
        };
        let watch = db.store().open_watch(&spec).await?;
        Watcher::new(db.store().clone(), watch, definition.settings, terms.owner)
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
