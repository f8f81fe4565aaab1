//! `changefeed watch TABLE`

use std::sync::Mutex;

use changefeed::{
    Batch, BatchFormat, Changefeed, Result, WatchFunction, WatchSpec, Watcher, WebhookOptions,
    batch_json, batch_sink, require_current, unique_name,
};

use super::definition;
use crate::args::WatchRun;
use crate::output::Out;
use crate::signals;

pub(super) async fn run(db: &Changefeed, args: WatchRun, out: &mut Out) -> Result<()> {
    let Some(table) = args.table else {
        return Err(crate::usage("watch what?")
            .advise("name a table and a function: changefeed watch orders --name mail"));
    };
    let Some(name) = args.name else {
        return Err(crate::usage("the function has no name")
            .advise("add --name FUNCTION: a function that is restarted under the same name continues where it stopped"));
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
        Some(definition) => batch_sink(&name, &definition, webhooks)?,
        None => None,
    };
    let watch = db.store().open_watch(&spec).await?;
    let shutdown = signals::shutdown()?;
    let watcher = Watcher::new(db.store().clone(), watch, settings, unique_name());
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
