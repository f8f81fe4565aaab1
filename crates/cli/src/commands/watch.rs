//! `changefeed watch`

mod list;
mod run;

pub(crate) use list::table;

use changefeed::{
    Changefeed, ParkedRows, Result, Watch as Definition, WatchDefinition, WatchName, WatchSpec,
    WebhookTarget,
};
use serde::Serialize;

use crate::args::{BatchSinkArgs, Watch, WatchArgs, WatchCreate, WatchSettingsArgs, WatchTarget};
use crate::connect;
use crate::output::{Out, confirm};

pub(crate) async fn run(database: &str, args: WatchArgs, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let Some(command) = args.command else {
        return run::run(&db, args.run, out).await;
    };
    match command {
        Watch::Create(args) => create(&db, *args, out).await,
        Watch::List => list::run(&db, out).await,
        Watch::Show { name, limit } => list::show(&db, &name, limit, out).await,
        Watch::Retry { name, version } => {
            let which = version.map_or(ParkedRows::All, ParkedRows::Version);
            retry(&db, &name, which, out).await
        }
        Watch::Reset { name, from, yes } => {
            let watch = find(&db, &name).await?;
            let question =
                format!("This forgets what watch '{name}' was handed and still has to do.");
            confirm(&question, yes)?;
            db.store().reset_watch(&watch, from).await?;
            out.say(format!("watch {name} begins again"))
        }
        Watch::Drop { name, yes } => {
            let watch = find(&db, &name).await?;
            confirm(
                &format!("This removes watch '{name}' with its backlog."),
                yes,
            )?;
            db.store().drop_watch(&watch).await?;
            out.say(format!("watch {name} is gone"))
        }
    }
}

async fn create(db: &Changefeed, args: WatchCreate, out: &mut Out) -> Result<()> {
    let spec = spec(db, args)?;
    let watch = db.store().open_watch(&spec).await?;
    if out.is_json() {
        return out.object(&db.watch_status(&watch, 0).await?);
    }
    out.line(format!(
        "watch {} of {} created; `changefeed serve` runs it",
        watch.name, watch.table
    ))?;
    out.line(format!("its leases are in {}", watch.leases_table))
}

/// The watch that was typed, or written in a file.
pub(crate) fn spec(db: &Changefeed, args: WatchCreate) -> Result<WatchSpec> {
    let Some(definition) = definition(args.target, &args.settings)? else {
        return Err(crate::usage("the watch has nothing to do with its changes")
            .advise(BatchSinkArgs::ADVICE));
    };
    definition.validate()?;
    WebhookTarget::check(&format!("watch '{}'", args.name), &definition.sink)?;
    Ok(WatchSpec {
        from: args.from,
        replace: args.replace,
        ..WatchSpec::served(args.name, db.table(&args.table)?, definition)
    })
}

/// The typed options as a definition; none without a sink.
fn definition(
    target: WatchTarget,
    settings: &WatchSettingsArgs,
) -> Result<Option<WatchDefinition>> {
    let filter = target.filter();
    Ok(target.sink.sink()?.map(|sink| WatchDefinition {
        sink,
        filter,
        timeout: target.timeout,
        settings: settings.settings(),
        max_changes_per_worker: target.max_changes_per_worker,
        with_version: target.with_version,
        with_columns: target.with_columns,
        with_before: target.with_before,
    }))
}

async fn retry(db: &Changefeed, name: &WatchName, which: ParkedRows, out: &mut Out) -> Result<()> {
    #[derive(Serialize)]
    struct Retried<'a> {
        watch: &'a WatchName,
        retried: u64,
    }
    let watch = find(db, name).await?;
    let retried = db.store().retry_parked(&watch, which).await?;
    if out.is_json() {
        return out.object(&Retried {
            watch: name,
            retried,
        });
    }
    match retried {
        0 => out.line(match which {
            ParkedRows::All => format!("nothing is parked in watch {name}"),
            ParkedRows::Version(version) => {
                format!("nothing is parked in watch {name} with version {version}")
            }
        }),
        1 => out.line(format!("1 change of watch {name} is tried again")),
        n => out.line(format!("{n} changes of watch {name} are tried again")),
    }
}

/// The watch of a name.
async fn find(db: &Changefeed, name: &WatchName) -> Result<Definition> {
    let watches = db.store().watches().await?;
    watches
        .into_iter()
        .find(|w| w.name == *name)
        .ok_or_else(|| name.unknown())
}
