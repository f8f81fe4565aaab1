//! `changefeed apply`

mod keys;
mod plan;
mod wanted;

use std::process::ExitCode;

use changefeed::{Changefeed, Error, Kind, Result, require_current};

use crate::args::Apply;
use crate::config::Config;
use crate::connect;
use crate::output::{Out, confirm};
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
    let Some(config) = config else {
        return Err(crate::usage("there is no changefeed.toml here")
            .advise("name a file, or begin with the one that `changefeed init` writes"));
    };
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let wanted = Wanted::of(&db, config).await?;
    let plan = Plan::make(&db, &wanted, args.prune).await?;
    show(&plan, out)?;
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
    apply(&db, &steps).await?;
    out.say("applied")?;
    Ok(ExitCode::SUCCESS)
}

async fn apply(db: &Changefeed, steps: &[changefeed::Step]) -> Result<()> {
    db.store().apply(steps).await.map_err(|error| {
        if error.kind() != Kind::AlreadyExists && error.kind() != Kind::NotFound {
            return error;
        }
        // Found out in the database, after we had looked at it.
        Error::new(error.kind(), format!("{error}; nothing was changed"))
            .advise("somebody else may have changed definitions meanwhile: apply again")
    })
}

fn show(plan: &Plan, out: &mut Out) -> Result<()> {
    if out.is_json() {
        return plan.entries.iter().try_for_each(|e| out.object(e));
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
        let key = change.key;
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
