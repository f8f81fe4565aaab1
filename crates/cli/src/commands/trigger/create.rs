//! `changefeed trigger create`

use changefeed::{
    Capture, Changefeed, CleanUp, Delivery, FeedBinding, Growth, OrderBy, Result, Retry,
    TriggerDefinition, Updates,
};

use super::operations;
use crate::args::CreateTrigger;
use crate::commands::columns;
use crate::output::Out;

pub(super) async fn run(db: &Changefeed, args: CreateTrigger, out: &mut Out) -> Result<()> {
    let (replace, paused) = (args.replace, args.paused);
    let definition = definition(db, args)?;
    let trigger = db.create_trigger(&definition, replace).await?;
    if paused {
        trigger.pause("created with --paused").await?;
    }
    if out.is_json() {
        let trigger = db.trigger(definition.name.as_str()).await?;
        return out.object(&trigger.view(&db.trigger_states().await?));
    }
    let trigger = trigger.definition();
    out.line(format!(
        "trigger {}: {} of {} from now on",
        trigger.definition.name,
        operations(trigger),
        trigger.definition.table
    ))?;
    out.line("`changefeed serve` or `changefeed deliver` delivers its events")
}

/// The trigger that was typed, or written in a file.
pub(crate) fn definition(db: &Changefeed, args: CreateTrigger) -> Result<TriggerDefinition> {
    // Nothing chosen: everything that happens to a row.
    let everything = !args.insert && args.update.is_none() && !args.delete && !args.manual;
    let columns = |names: &str| columns::parse(db, names);
    let update = match args.update {
        None if everything => Updates::Any,
        None => Updates::Ignored,
        Some(None) => Updates::Any,
        Some(Some(names)) => Updates::Of(columns(&names)?),
    };
    let order_by = match args.in_order {
        // What is collected by key needs a key.
        None => args.debounce.map(|_| OrderBy::Key),
        Some(None) => Some(OrderBy::Key),
        Some(Some(column)) => Some(OrderBy::Column(db.column(&column)?)),
    };
    let feed = match args.feed {
        None => None,
        Some(feed) => Some(FeedBinding {
            feed,
            shard_by: args.shard_by.as_deref().map(|c| db.column(c)).transpose()?,
        }),
    };
    Ok(TriggerDefinition {
        table: db.table(&args.table)?,
        name: args.name,
        capture: Capture {
            insert: args.insert || everything,
            update,
            delete: args.delete || everything,
            payload: args.payload.as_deref().map(columns).transpose()?,
            condition: args.when,
            order_by,
            feed,
            manual: args.manual,
            not_for_replication: args.not_for_replication,
        },
        delivery: Delivery {
            sink: args.webhook.sink()?.unwrap_or_default(),
            format: args.format.into(),
            retry: Retry {
                num_retries: args.retries,
                interval: args.interval,
                timeout: args.timeout,
                growth: match args.backoff {
                    Some(cap) => Growth::Exponential { cap },
                    None => Growth::Fixed,
                },
                final_statuses: args.final_status,
                max_retry_after: args.max_retry_after,
            },
            concurrency: args.concurrency,
            concurrency_overall: args.concurrency_overall,
            rate: args.rate,
            delay: args.delay,
            debounce: args.debounce,
            clean_up_logs_after: args.clean_up_logs_after,
            clean_up: args.clean_up_after.map(|after| CleanUp {
                after,
                dead_letters: args.clean_up_dead_letters,
            }),
        },
    })
}
