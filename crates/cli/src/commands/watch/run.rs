//! `changefeed watch TABLE`

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Mutex;
use std::time::Duration;

use changefeed::{
    Batch, BatchFormat, Changefeed, Handled, Result, WatchFunction, WatchName, WatchSpec, Watcher,
    WebhookOptions, batch_json, batch_sink, require_current, unique_name,
};

use super::definition;
use crate::args::WatchRun;
use crate::output::Out;
use crate::signals;

pub(super) async fn run(db: &Changefeed, args: WatchRun, out: &mut Out) -> Result<()> {
    let Some(table) = args.table else {
        return Err(crate::usage("watch what?").advise(
            "name a table, and a function that is to last: changefeed watch orders --name mail",
        ));
    };
    require_current(db.schema().await?)?;
    let settings = args.settings.settings();
    settings.validate()?;
    let table = db.table(&table)?;
    let name = match args.name {
        Some(name) => name,
        None if args.keep => made_up(&table.name)?,
        None if settings.polling_interval > RARELY => {
            return Err(crate::usage("a watch that looks so rarely needs a name")
                .advise("add --name FUNCTION, or --keep: without, it is taken for one that was left behind"));
        }
        None => WatchName::temporary(chance()),
    };
    // Those of processes that were killed. Somebody else may look after them who has the right to.
    if let Err(error) = db.remove_left_watches().await {
        tracing::debug!(%error, "watches that were left behind are not removed");
    }
    let webhooks = WebhookOptions {
        variables: args.variables,
        ..WebhookOptions::default()
    };
    let target = &args.target;
    let (format, filter) = (target.format(), target.filter());
    filter.validate()?;
    let spec = WatchSpec {
        from: args.from,
        max_changes_per_worker: target.max_changes_per_worker,
        ..WatchSpec::new(name.clone(), table).wanting(&filter, format)
    };
    // Without a place to go to, batches are printed.
    let function = match definition(args.target, &args.settings)? {
        Some(definition) => batch_sink(&name, &definition, webhooks)?,
        None => None,
    };
    // Before anything is there that would be left behind.
    let shutdown = signals::shutdown()?;
    let watch = db.store().open_watch(&spec).await?;
    if args.keep {
        tracing::warn!(watch = %name, "kept under this name");
    }
    let watcher = Watcher::new(db.store().clone(), watch.clone(), settings, unique_name())
        .filter(&filter, format)?;
    let ended = match function {
        Some(function) => watcher.run(&*function, shutdown).await,
        None => {
            let print = Print {
                out: Mutex::new(out),
                format,
            };
            watcher.run(&print, shutdown).await
        }
    };
    if name.is_temporary()
        && let Err(error) = db.store().drop_watch(&watch).await
    {
        tracing::warn!(
            watch = %name, %error,
            "it could not be removed: `changefeed watch drop` does that, or the next start of a watch"
        );
    }
    let totals = ended?;
    tracing::info!(
        batches = totals.batches,
        changes = totals.changes,
        failed = totals.failed,
        "stopped"
    );
    Ok(())
}

/// A watch without a name is known to be at work by how often it looks.
const RARELY: Duration = Duration::from_secs(20);

fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A name for a function that is to last.
fn made_up(table: &str) -> Result<WatchName> {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let table: String = table.chars().filter(plain).take(80).collect();
    format!("{table}-{:06x}", chance() % 0x100_0000).parse()
}

/// Prints each change on a line of its own.
struct Print<'a> {
    out: Mutex<&'a mut Out>,
    format: BatchFormat,
}

#[async_trait::async_trait]
impl WatchFunction for Print<'_> {
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
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
        out.flush().map_err(|e| e.to_string())?;
        Ok(Handled::all())
    }
}
