//! `changefeed migrate`

use changefeed::{Backend, MigrationStep, Result};

use crate::args::Migrate;
use crate::output::Out;

pub(crate) async fn run(database: &str, args: Migrate, out: &mut Out) -> Result<()> {
    if args.print {
        return out.text(changefeed::migration_script(database)?);
    }
    let db = changefeed::connect(database).await?;
    let steps = Backend::parse(database)?.migrations()?;
    let done = if args.dry_run {
        db.schema().await?.pending(steps)?.0
    } else {
        db.migrate().await?
    };
    if out.is_json() {
        return out.object(&done);
    }
    out.line(match (done.from, done.to, args.dry_run) {
        (from, to, _) if from == to => format!("changefeed schema {to} is already there"),
        (0, to, false) => format!("installed changefeed schema {to}"),
        (0, to, true) => format!("would install changefeed schema {to}"),
        (from, to, false) => format!("upgraded changefeed schema from {from} to {to}"),
        (from, to, true) => format!("would upgrade changefeed schema from {from} to {to}"),
    })?;
    // Nobody ran anything on tables that were not there.
    let upgraded = |step: &&MigrationStep| done.from > 0 && step.version > done.from;
    for step in steps.iter().filter(upgraded) {
        let (version, beside) = (step.version, step.older_programs());
        out.line(format!("  {version}: older programs: {beside}"))?;
    }
    Ok(())
}
