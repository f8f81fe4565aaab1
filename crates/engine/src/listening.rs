//! Looking at the changes of a table for a while, without leaving anything behind.
//!
//! A listener makes an event trigger of its own, takes its events, and removes both when it ends. It holds one of a
//! few numbered leases meanwhile, so that what a killed one has left is found and removed by the next listener, by
//! every instance that cleans up, and by `changefeed doctor`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{
    Capture, CleanUp, Delivery, Error, Event, EventTrigger, Kind, Lease, Result, Retry, Sink,
    Store, TableName, TriggerDefinition, TriggerName,
};
use tokio_util::sync::CancellationToken;

use crate::sinks::Handler;
use crate::{DispatchOptions, Dispatcher, describe};

/// How long what a listener has made stays when it is killed.
const LEASE: Duration = Duration::from_secs(10);
/// How many there can be at the same time.
const MOST: u32 = 100;
const NAME: &str = "changefeed_listen_";
/// Events that one statement removes.
const BATCH: usize = 1000;

/// Gives every change of a table from now on to a function, one after the other, until told to stop.
pub async fn listen<F, W>(
    store: Arc<dyn Store>,
    table: TableName,
    capture: Capture,
    owner: &str,
    function: F,
    ready: impl FnOnce(&TriggerName),
    shutdown: CancellationToken,
) -> Result<()>
where
    F: Fn(Event) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), String>> + Send + 'static,
{
    remove_dead(&*store, owner).await?;
    let (lease, name) = place(&*store, owner).await?;
    // Somebody has died here in the meantime.
    remove_trigger(&*store, &name).await?;
    let definition = TriggerDefinition {
        name: name.clone(),
        table,
        capture,
        delivery: Delivery {
            sink: Sink::InProcess,
            retry: Retry {
                num_retries: 0,
                ..Retry::default()
            },
            ..Delivery::default()
        },
    };
    let ended = match store.create_trigger(&definition, false).await {
        Ok(_) => {
            ready(&name);
            let options = DispatchOptions {
                concurrency: 1,
                fetch_interval: Duration::from_millis(250),
                grace: Duration::from_secs(5),
                ..DispatchOptions::new(owner)
            };
            let handler = Arc::new(Handler::new(name.clone(), function));
            let dispatcher = Dispatcher::new(store.clone(), handler, options);
            let stop = shutdown.child_token();
            let held = hold(&*store, lease.clone(), stop.clone());
            let (ended, ()) = tokio::join!(
                async {
                    let ended = dispatcher.run(|_| {}, stop.clone()).await;
                    stop.cancel();
                    ended
                },
                held
            );
            ended.map(drop)
        }
        Err(error) => Err(error),
    };
    remove_trigger(&*store, &name).await?;
    store.release(&lease).await?;
    ended
}

/// Removes what listeners have left that were killed. Returns how many it were.
pub async fn remove_dead(store: &dyn Store, owner: &str) -> Result<usize> {
    let mut removed = 0;
    for trigger in store.triggers().await? {
        let Some(number) = number(&trigger.definition.name) else {
            continue;
        };
        // Whoever listens holds it.
        if let Some(lease) = store.lease(&lease_name(number), owner, LEASE).await? {
            remove(store, &trigger).await?;
            store.release(&lease).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// A number that nobody listens under.
async fn place(store: &dyn Store, owner: &str) -> Result<(Lease, TriggerName)> {
    for number in 1..=MOST {
        if let Some(lease) = store.lease(&lease_name(number), owner, LEASE).await? {
            return Ok((lease, format!("{NAME}{number}").parse()?));
        }
    }
    Err(Error::new(
        Kind::Busy,
        format!("{MOST} others listen already"),
    ))
}

fn lease_name(number: u32) -> String {
    format!("listen/{number}")
}

fn number(name: &TriggerName) -> Option<u32> {
    name.as_str().strip_prefix(NAME)?.parse().ok()
}

/// Keeps the lease; ends everything when it is lost, because somebody may remove the trigger then.
async fn hold(store: &dyn Store, mut lease: Lease, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(LEASE / 6))
        .await
        .is_some()
    {
        if !lease.wants_renewal(Instant::now()) {
            continue;
        }
        match store.lease(&lease.name, &lease.owner, LEASE).await {
            Ok(Some(renewed)) if renewed.generation == lease.generation => lease = renewed,
            Ok(_) => stop.cancel(),
            Err(error) => tracing::warn!(error = %describe(&error), "the lease is not prolonged"),
        }
        if !lease.is_trusted(Instant::now()) {
            tracing::error!("this listener was not heard of for too long: it ends");
            stop.cancel();
        }
    }
}

async fn remove_trigger(store: &dyn Store, name: &TriggerName) -> Result<()> {
    let triggers = store.triggers().await?;
    match triggers.iter().find(|t| t.definition.name == *name) {
        Some(trigger) => remove(store, trigger).await,
        None => Ok(()),
    }
}

/// Removes a trigger with its events.
async fn remove(store: &dyn Store, trigger: &EventTrigger) -> Result<()> {
    match store.drop_trigger(trigger).await {
        Err(error) if error.kind() != Kind::NotFound => return Err(error),
        _ => {}
    }
    let everything = CleanUp {
        after: Duration::ZERO,
        dead_letters: true,
    };
    while store
        .clean_up_events(Some(trigger), everything, BATCH)
        .await?
        .more
    {}
    Ok(())
}
