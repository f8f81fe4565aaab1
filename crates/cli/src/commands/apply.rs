//! `changefeed apply`

mod export;
mod keys;
mod plan;
mod subscriptions;
mod wanted;

use std::process::ExitCode;

use changefeed::{Error, Kind, Result, require_current};
use serde::Serialize;

use crate::args::Apply;
use crate::config::Config;
use crate::connect;
use crate::output::{Out, confirm, place};
use plan::{Action, Entry, Plan};
use wanted::Wanted;

/// The exit code of `--check` when the database is not as the file says; 1 is for what failed.
const DIFFERENT: u8 = 3;

pub(crate) async fn run(
    database: &str,
    config: Option<Config>,
    args: Apply,
    out: &mut Out,
) -> Result<ExitCode> {
    if args.export {
        let db = connect(database).await?;
        require_current(db.schema().await?)?;
        export::run(&db, out).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(config) = config else {
        return Err(crate::usage("there is no changefeed.toml here")
            .advise("name a file, or begin with the one that `changefeed init` writes"));
    };
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let place = place(database);
    if !out.is_json() {
        where_to(&place, database, &config, out)?;
    }
    let wanted = Wanted::of(&db, config).await?;
    let plan = Plan::make(&db, &wanted, args.prune).await?;
    show(&plan, &place, out)?;
    let refused = plan.count(Action::Refuse);
    if refused > 0 {
        let what = match refused {
            1 => "1 definition cannot be changed".to_owned(),
            n => format!("{n} definitions cannot be changed"),
        };
        return Err(crate::usage(format!("{what}; nothing was changed")));
    }
    let steps = plan.steps();
    if steps.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        return Ok(ExitCode::from(DIFFERENT));
    }
    let drops = plan.count(Action::Drop);
    if drops > 0 {
        out.flush()?;
        confirm(
            &format!("This drops {drops} of them, with what is in them."),
            args.yes,
        )?;
    }
    if let Err(error) = db.store().apply(&steps).await {
        let now = Plan::make(&db, &wanted, args.prune).await;
        let outdated = now.is_ok_and(|now| !now.is_like(&plan));
        return Err(failed(error, outdated));
    }
    out.say("applied")?;
    Ok(ExitCode::SUCCESS)
}

/// The error for steps that failed: the database may have changed since the plan was made.
fn failed(error: Error, outdated: bool) -> Error {
    if error.kind() != Kind::AlreadyExists && error.kind() != Kind::NotFound {
        return error;
    }
    let said = Error::new(error.kind(), format!("{error}; nothing was changed"));
    match error.advice() {
        _ if outdated => said.advise("definitions were changed meanwhile: apply again"),
        Some(advice) => said.advise(advice.to_owned()),
        None => said,
    }
}

/// Prints the database: the command line may name another one than the file.
fn where_to(place: &str, database: &str, config: &Config, out: &mut Out) -> Result<()> {
    out.line(format!("database {place}"))?;
    match config.database() {
        Ok(Some(named)) if named != database => out.line(format!(
            "{} names {}, and --db or CHANGEFEED_DB goes before it",
            config.path,
            crate::output::place(&named)
        )),
        _ => Ok(()),
    }
}

/// A difference as JSON, one object each.
#[derive(Serialize)]
struct Line<'a> {
    database: &'a str,
    #[serde(flatten)]
    entry: &'a Entry,
}

fn show(plan: &Plan, database: &str, out: &mut Out) -> Result<()> {
    if out.is_json() {
        let mut entries = plan.entries.iter();
        return entries.try_for_each(|entry| out.object(&Line { database, entry }));
    }
    for entry in &plan.entries {
        lines(entry, out)?;
    }
    if !plan.left.is_empty() {
        out.line(format!(
            "not in the file, and left alone without --prune: {}",
            plan.left.join(", ")
        ))?;
    }
    if plan.entries.is_empty() {
        return out.line("nothing to do");
    }
    out.line(format!(
        "{} to create, {} to change, {} to drop",
        plan.count(Action::Create),
        plan.count(Action::Change),
        plan.count(Action::Drop)
    ))
}

fn lines(entry: &Entry, out: &mut Out) -> Result<()> {
    let sign = match entry.action {
        Action::Create => '+',
        Action::Change => '~',
        Action::Drop => '-',
        Action::Refuse => '!',
    };
    out.line(format!("{sign} {} {}", entry.kind, entry.name))?;
    for change in &entry.changes {
        let key = &change.key;
        out.line(match (&change.from, &change.to) {
            (Some(from), Some(to)) => format!("    {key}: {from} → {to}"),
            (Some(from), None) => format!("    {key}: {from} → (default)"),
            (None, Some(to)) if entry.action == Action::Create => format!("    {key} = {to}"),
            (None, Some(to)) => format!("    {key}: (default) → {to}"),
            (None, None) => format!("    {key}: (not shown)"),
        })?;
    }
    match &entry.note {
        Some(note) => out.line(format!("    {note}")),
        None => Ok(()),
    }
}
