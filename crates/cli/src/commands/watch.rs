//! `changefeed watch`

mod list;
mod run;

pub(crate) use list::table;
pub(crate) use run::{function_of, serve};

use changefeed::{
    Changefeed, Result, Watch as Definition, WatchDefinition, WatchName, WatchSpec, WatchStatus,
    WebhookOptions,
};
use serde::Serialize;

use crate::args::{Watch, WatchArgs, WatchCreate, WatchSettingsArgs, WatchTarget};
use crate::connect;
use crate::output::{Out, confirm};

pub(crate) async fn run(database: &str, args: WatchArgs, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let Some(command) = args.command else {
        return run::run(&db, args.run, out).await;
    };
    match command {
        Watch::Create(args) => create(&db, args, out).await,
        Watch::List => list::run(&db, out).await,
        Watch::Show { name, limit } => list::show(&db, &name, limit, out).await,
        Watch::Retry { name } => retry(&db, &name, out).await,
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
        return out.object(&watch);
    }
    out.line(format!(
        "watch {} of {} created; `changefeed serve` runs it",
        watch.name, watch.table
    ))?;
    out.line(format!("its leases are in {}", watch.leases_table))
}

/// The watch that was typed, or written in a file.
pub(crate) fn spec(db: &Changefeed, args: WatchCreate) -> Result<WatchSpec> {
    if args.target.exec.is_none() && args.target.webhook.is_none() {
        return Err(crate::usage("the watch has nothing to do with its changes")
            .advise("add --webhook URL or --exec COMMAND"));
    }
    let definition = definition(&args.target, &args.settings);
    definition.settings().validate()?;
    // The secret is looked up where the watch runs.
    let checked = WatchDefinition {
        secret_env: None,
        ..definition.clone()
    };
    function_of(&args.name, &checked, WebhookOptions::default())?;
    Ok(WatchSpec {
        from: args.from,
        columns: definition.with_columns,
        max_changes_per_worker: definition.max_changes_per_worker,
        definition: Some(definition),
        replace: args.replace,
        ..WatchSpec::new(args.name, db.table(&args.table)?)
    })
}

/// What was typed, as it is stored.
fn definition(target: &WatchTarget, settings: &WatchSettingsArgs) -> WatchDefinition {
    let chosen = settings.settings();
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    WatchDefinition {
        exec: target.exec.clone(),
        webhook: target.webhook.clone(),
        secret_env: target.secret_env.clone(),
        batch: Some(chosen.batch),
        interval_ms: Some(ms(chosen.interval)),
        lease_ms: Some(ms(chosen.lease)),
        renewal_ms: Some(ms(chosen.renewal)),
        attempts: Some(chosen.attempts),
        max_changes_per_worker: target.max_changes_per_worker,
        with_version: target.with_version,
        with_columns: target.with_columns,
        granted_env: Vec::new(),
    }
    .granted()
}

async fn retry(db: &Changefeed, name: &WatchName, out: &mut Out) -> Result<()> {
    #[derive(Serialize)]
    struct Retried<'a> {
        watch: &'a WatchName,
        retried: u64,
    }
    let watch = find(db, name).await?;
    let retried = db.store().retry_parked(&watch).await?;
    if out.is_json() {
        return out.object(&Retried {
            watch: name,
            retried,
        });
    }
    match retried {
        0 => out.line(format!("nothing is parked in watch {name}")),
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

/// All watches and how they are doing.
pub(crate) async fn statuses(db: &Changefeed) -> Result<Vec<WatchStatus>> {
    let mut statuses = Vec::new();
    for watch in db.store().watches().await? {
        statuses.push(db.store().watch_status(&watch, 0).await?);
    }
    Ok(statuses)
}
