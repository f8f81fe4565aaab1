//! What a file defines, as this database would have it.

use changefeed::{
    CHANGES_PER_WORKER, Changefeed, Error, FeedName, NewFeed, Result, Setting, Sink, Source,
    SubscriptionDefinition, TableName, TriggerDefinition, WatchSpec, WebhookTarget,
    without_secrets,
};

use crate::commands::{feed, trigger, watch};
use crate::config::{Config, Place, Written};

/// The definitions of a file. Tables are named as the database names them.
pub(super) struct Wanted {
    pub(super) feeds: Vec<Written<NewFeed>>,
    /// With whether it is paused, if the file says that.
    pub(super) triggers: Vec<(TriggerDefinition, Option<bool>)>,
    pub(super) watches: Vec<WatchSpec>,
    /// With whether it is paused, if the file says that, and where it is defined.
    pub(super) subscriptions: Vec<(SubscriptionDefinition, Option<bool>, Place)>,
}

impl Wanted {
    pub(super) async fn of(db: &Changefeed, config: Config) -> Result<Wanted> {
        let mut wanted = Wanted {
            feeds: Vec::new(),
            triggers: Vec::new(),
            watches: Vec::new(),
            subscriptions: Vec::new(),
        };
        for written in config.feeds {
            let feed = feed_of(db, feed::new_feed(db, written.value)).await;
            let value = feed.map_err(|e| written.place.of(e))?;
            let place = written.place;
            let mut others = wanted.feeds.iter().map(|f| &f.value);
            if let Some(other) = others.find(|f| f.id.is_some() && f.id == value.id) {
                return Err(taken(&place, &value, &other.name));
            }
            wanted.feeds.push(Written { value, place });
        }
        for written in config.triggers {
            let paused = config.paused.get(written.value.name.as_str()).copied();
            let trigger = trigger_of(db, trigger::definition(db, written.value)).await;
            let trigger = trigger.map_err(|e| written.place.of(e))?;
            refuse_secrets(&trigger.delivery.sink, &written.place)?;
            wanted.triggers.push((trigger, paused));
        }
        for written in config.watches {
            let watch = watch_of(db, watch::spec(db, written.value)).await;
            let watch = watch.map_err(|e| written.place.of(e))?;
            if let Some(definition) = &watch.definition {
                refuse_secrets(&definition.sink, &written.place)?;
            }
            wanted.watches.push(watch);
        }
        for written in config.subscriptions {
            let name = written.value.name.clone();
            let hidden = written.value.to_env.is_some();
            let paused = config.paused_subscriptions.get(name.as_str()).copied();
            let definition = written.value.definition(db);
            let definition = definition.map_err(|e| written.place.of(e))?;
            for sink in definition.sinks() {
                refuse_secrets(sink, &written.place)?;
                if !hidden && sink.without_password() != *sink {
                    return Err(written.place.error(
                        "the URL of the sink holds a password, which is not written in this file: write \
                         to = { env = \"NAME\" }",
                    ));
                }
            }
            let place = written.place;
            wanted.subscriptions.push((definition, paused, place));
        }
        Ok(wanted)
    }
}

/// A feed whose number is another's.
pub(super) fn taken(place: &Place, new: &NewFeed, other: &FeedName) -> Error {
    let id = new.id.map(|id| id.to_string()).unwrap_or_default();
    let what = format!(
        "feed '{}' cannot have the id {id}, which feed '{other}' has",
        new.name
    );
    place
        .error(what)
        .advise("give it another id, or none for the next that is free")
}

async fn find(db: &Changefeed, table: &mut TableName) -> Result<()> {
    *table = db.store().find_table(table).await?;
    Ok(())
}

async fn feed_of(db: &Changefeed, new: Result<NewFeed>) -> Result<NewFeed> {
    let mut new = new?;
    new.validate()?;
    match &mut new.source {
        Some(
            Source::Captured { table, .. }
            | Source::Joined { table, .. }
            | Source::Ulid { table, .. },
        ) => find(db, table).await?,
        Some(Source::Events) | None => {}
    }
    Ok(new)
}

async fn trigger_of(
    db: &Changefeed,
    definition: Result<TriggerDefinition>,
) -> Result<TriggerDefinition> {
    let mut definition = definition?;
    definition.validate()?;
    let whose = format!("trigger '{}'", definition.name);
    WebhookTarget::check(&whose, &definition.delivery.sink)?;
    find(db, &mut definition.table).await?;
    Ok(definition)
}

async fn watch_of(db: &Changefeed, spec: Result<WatchSpec>) -> Result<WatchSpec> {
    let mut spec = spec?;
    find(db, &mut spec.table).await?;
    spec.replace = true;
    // What is not said is the default, also where something else was said before.
    spec.max_changes_per_worker
        .get_or_insert(u32::try_from(CHANGES_PER_WORKER).unwrap_or(u32::MAX));
    Ok(spec)
}

/// Files are shown around and kept in repositories, so nothing that looks like a secret may be in one.
fn refuse_secrets(sink: &Sink, place: &Place) -> Result<()> {
    let shown = without_secrets(sink);
    let (Some(webhook), Some(shown)) = (sink.as_webhook(), shown.as_webhook()) else {
        return Ok(());
    };
    for (header, shown) in webhook.headers.iter().zip(&shown.headers) {
        if header.value != shown.value {
            return Err(place.error(format!(
                "the header '{0}' looks like a secret, which is not written in this file: write \
                 {0} = {{ env = \"NAME\" }}",
                header.name
            )));
        }
    }
    let hides = |setting: &Setting| match setting {
        Setting::Value(url) => url.contains("***"),
        Setting::FromEnv(_) => false,
    };
    if hides(&shown.url) && !hides(&webhook.url) {
        return Err(place.error(
            "the webhook's URL holds a secret, which is not written in this file: write \
             webhook = { env = \"NAME\" }",
        ));
    }
    Ok(())
}
