//! `changefeed subscription`

use changefeed::view::{SubscriptionShard, SubscriptionView};
use changefeed::{Changefeed, Result};

use crate::args::Subscriptions;
use crate::connect;
use crate::output::{Out, confirm, human_ms};

pub(crate) async fn run(database: &str, args: Subscriptions, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Subscriptions::Create(args) => {
            let (replace, paused) = (args.replace, args.paused);
            let definition = args.definition(&db)?;
            let mut view = db.create_subscription(&definition, replace).await?;
            if paused {
                // It may have begun meanwhile, which is no harm.
                let (name, why) = (&definition.name, "created paused");
                db.store().pause_subscription(name, Some(why)).await?;
                view = db.subscription(name).await?;
            }
            done(&view, out, "defined; `changefeed serve` runs it")
        }
        Subscriptions::List => list(&db, out).await,
        Subscriptions::Show { name, limit } => {
            let view = db.subscription(&name).await?;
            if out.is_json() {
                return out.object(&view);
            }
            show(&view, out)?;
            for parked in db.store().parked_changes(&name, limit).await? {
                out.line(format!(
                    "parked: shard {} cursor {}: {}",
                    parked.shard, parked.cursor, parked.reason
                ))?;
            }
            Ok(())
        }
        Subscriptions::Pause { name, reason } => {
            db.store().pause_subscription(&name, Some(&reason)).await?;
            done(&db.subscription(&name).await?, out, "is paused")
        }
        Subscriptions::Resume { name } => {
            db.store().pause_subscription(&name, None).await?;
            done(&db.subscription(&name).await?, out, "goes on")
        }
        Subscriptions::Seek { name, to, shard } => {
            let view = db.seek_subscription(&name, shard, to).await?;
            done(&view, out, "goes on there")
        }
        Subscriptions::Replay {
            name,
            from,
            shard,
            yes,
        } => {
            let question = format!("This pushes changes to the sink of '{name}' again.");
            confirm(&question, yes)?;
            let view = db.seek_subscription(&name, shard, from).await?;
            done(&view, out, "begins again")
        }
        Subscriptions::Reset { name, yes } => {
            let question =
                format!("This accepts that the sink of '{name}' lacks what was pushed before.");
            confirm(&question, yes)?;
            let view = db.reset_subscription(&name).await?;
            done(&view, out, "goes on behind what was pushed")
        }
        Subscriptions::Drop { name, yes } => {
            db.subscription(&name).await?;
            let question = format!("This removes subscription '{name}' and its position.");
            confirm(&question, yes)?;
            db.store().drop_subscription(&name).await?;
            out.say(format!("subscription {name} is gone"))
        }
    }
}

fn done(view: &SubscriptionView, out: &mut Out, what: &str) -> Result<()> {
    if out.is_json() {
        return out.object(view);
    }
    out.line(format!("subscription {} {what}", view.definition.name))
}

async fn list(db: &Changefeed, out: &mut Out) -> Result<()> {
    let views = db.subscriptions().await?;
    if out.is_json() {
        return views.iter().try_for_each(|view| out.object(view));
    }
    if views.is_empty() {
        return out.line(
            "no subscriptions yet; `changefeed subscription create NAME --feed FEED --to URL` makes one",
        );
    }
    table(&views, out)
}

/// Subscriptions as a table for a person.
pub(crate) fn table(views: &[SubscriptionView], out: &mut Out) -> Result<()> {
    let rows = views
        .iter()
        .map(|view| {
            let sum = |of: fn(&SubscriptionShard) -> i64| {
                view.shards.iter().map(of).sum::<i64>().to_string()
            };
            vec![
                view.definition.name.to_string(),
                view.definition.feed.to_string(),
                view.definition.sink.to_string(),
                view.state.to_owned(),
                view.lag_changes.to_string(),
                human_ms(view.lag_ms),
                sum(|shard| shard.sent),
                sum(|shard| shard.parked),
                sum(|shard| shard.lost),
            ]
        })
        .collect();
    let head = [
        "SUBSCRIPTION",
        "FEED",
        "TO",
        "STATE",
        "BEHIND",
        "SINCE",
        "SENT",
        "PARKED",
        "LOST",
    ];
    out.table(&head, rows)
}

fn show(view: &SubscriptionView, out: &mut Out) -> Result<()> {
    table(std::slice::from_ref(view), out)?;
    if let Some(why) = &view.paused {
        out.line(format!("paused: {why}"))?;
    }
    let rows = view
        .shards
        .iter()
        .map(|shard| {
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            vec![
                shard.shard.to_string(),
                shard.state.to_owned(),
                or_dash(shard.cursor.map(|cursor| cursor.to_string())),
                or_dash(shard.lag_changes.map(|lag| lag.to_string())),
                shard.epoch.to_string(),
                or_dash(shard.owner.clone()),
            ]
        })
        .collect();
    out.table(
        &["SHARD", "STATE", "CURSOR", "BEHIND", "EPOCH", "INSTANCE"],
        rows,
    )?;
    for shard in &view.shards {
        if let Some(failing) = &shard.failing {
            out.line(format!(
                "the sink of shard {} has taken nothing for {}: {}",
                shard.shard,
                human_ms(failing.since_ms),
                failing.error
            ))?;
        }
        if let Some(why) = &shard.stopped {
            out.line(format!("shard {} is stopped: {why}", shard.shard))?;
        }
    }
    Ok(())
}
