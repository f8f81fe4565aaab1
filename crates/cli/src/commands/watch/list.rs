//! `changefeed watch list` and `show`

use changefeed::{Changefeed, Result, WatchDefinition, WatchName, WatchStatus};

use crate::output::{Out, human_ms};

pub(super) async fn run(db: &Changefeed, out: &mut Out) -> Result<()> {
    let watches = db.watch_statuses().await?;
    if out.is_json() {
        return watches.iter().try_for_each(|w| out.object(w));
    }
    if watches.is_empty() {
        return out.line("no watches yet; `changefeed watch TABLE --name FUNCTION` makes one");
    }
    table(&watches, out)
}

/// The watches as a table.
pub(crate) fn table<'a>(
    watches: impl IntoIterator<Item = &'a WatchStatus>,
    out: &mut Out,
) -> Result<()> {
    let rows = watches
        .into_iter()
        .map(|w| {
            vec![
                w.watch.name.to_string(),
                w.watch.table.to_string(),
                w.unprocessed.to_string(),
                w.leased.to_string(),
                w.parked.to_string(),
                w.suggested_workers.to_string(),
                w.idle_ms
                    .map_or_else(String::new, |ms| format!("{} ago", human_ms(ms))),
                shortened(w.last_error.as_deref().unwrap_or_default()),
            ]
        })
        .collect();
    out.table(
        &[
            "WATCH",
            "TABLE",
            "UNPROCESSED",
            "LEASED",
            "PARKED",
            "WORKERS",
            "AT WORK",
            "LAST ERROR",
        ],
        rows,
    )
}

fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// What `serve` does with a watch.
fn describe(definition: &WatchDefinition) -> String {
    let target = format!("hands its batches to {}", definition.sink);
    let settings = definition.settings;
    let time = humantime::format_duration;
    let mut words = vec![
        format!("batches of {}", settings.batch),
        format!("lease {}", time(settings.lease)),
        format!("renewed every {}", time(settings.renewal)),
        format!(
            "{} attempts from {} apart",
            settings.attempts,
            time(settings.retry_interval)
        ),
        format!("timeout {}", time(definition.timeout)),
    ];
    if !settings.polling_interval.is_zero() {
        words.push(format!(
            "looks every {} at most",
            time(settings.polling_interval)
        ));
    }
    let filter = &definition.filter;
    if !filter.on.is_empty() {
        let names: Vec<String> = filter.on.iter().map(ToString::to_string).collect();
        words.push(format!("only {}", names.join(", ")));
    }
    words.extend(
        filter
            .when
            .iter()
            .map(|condition| format!("when {condition}")),
    );
    if !filter.columns.is_empty() {
        words.push(format!("columns {}", filter.columns.join(", ")));
    }
    words.extend(definition.with_version.then(|| "with versions".to_owned()));
    words.extend(
        definition
            .with_columns
            .then(|| "with changed columns".to_owned()),
    );
    words.extend(
        definition
            .with_before
            .then(|| "with rows as they were".to_owned()),
    );
    words.extend(
        definition
            .sink
            .as_webhook()
            .into_iter()
            .flat_map(|w| &w.secrets_from_env)
            .map(|v| format!("signed with {v}")),
    );
    format!("{target}\n  {}", words.join(", "))
}

pub(super) async fn show(
    db: &Changefeed,
    name: &WatchName,
    limit: usize,
    out: &mut Out,
) -> Result<()> {
    let watch = super::find(db, name).await?;
    let status = db.watch_status(&watch, limit).await?;
    if out.is_json() {
        return out.object(&status);
    }
    let parked = &status.parked_changes;
    table([&status], out)?;
    out.line("")?;
    out.line(format!(
        "function id {}, leases in {}",
        status.watch.function_id, status.watch.leases_table
    ))?;
    if let Some(definition) = &status.watch.definition {
        out.line(format!("`changefeed serve` {}", describe(definition)))?;
    }
    if parked.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let rows = parked
        .iter()
        .map(|p| {
            vec![
                p.key.get().to_owned(),
                p.operation.to_string(),
                p.attempts.to_string(),
                format!("{} ago", human_ms(p.since_ms)),
                p.version.to_string(),
                p.error.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let columns = [
        "PARKED",
        "OPERATION",
        "ATTEMPTS",
        "SINCE",
        "VERSION",
        "ERROR",
    ];
    out.table(&columns, rows)?;
    out.line(format!(
        "`changefeed watch retry {name}` tries them again, `--version` one of them"
    ))
}
