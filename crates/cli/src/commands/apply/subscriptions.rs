//! What has to be done so that a subscription is as a file says.

use changefeed::{
    After, Changefeed, Cursor, Feed, NewFeed, Result, Shard, ShardId, Source, Step, Subscription,
    SubscriptionDefinition, Ulid,
};

use super::keys::{self, Difference, Keys, differences};
use super::plan::{Action, Entry, PAUSED, newly_granted};

/// The feed of a subscription, as it is when the steps before are done.
pub(super) enum FeedThen {
    There(Feed),
    Created(NewFeed),
}

pub(super) fn drop(there: &Subscription) -> Entry {
    let name = &there.definition.name;
    Entry::new(Action::Drop, "subscription", name)
        .note("its position is lost; the sink keeps what it has")
        .step(Step::DropSubscription(name.clone()))
}

pub(super) async fn put(
    db: &Changefeed,
    there: Option<&Subscription>,
    new: &SubscriptionDefinition,
    paused: Option<bool>,
    feed: &FeedThen,
) -> Result<Option<Entry>> {
    let mut wanted = new.clone();
    if let Some(there) = there {
        // Where it began is over.
        wanted.from = there.definition.from;
    }
    wanted.check_feed(&feed.then())?;
    let old = there.map(|t| &t.definition);
    let same = old == Some(&wanted);
    let is_paused = there.is_some_and(|t| t.paused.is_some());
    let turned = paused.filter(|paused| *paused != is_paused);
    if same && turned.is_none() {
        return Ok(None);
    }
    let before = old.map_or_else(Keys::new, |old| keys::subscription(old, false));
    let mut changes = differences(&before, &keys::subscription(&wanted, old.is_none()));
    if changes.is_empty() {
        changes.extend(newly_granted(old.map(|d| &d.sink), &wanted.sink));
    }
    if !same && changes.is_empty() {
        // Only values that are not shown are different.
        changes.push(Difference {
            key: "to or header".to_owned(),
            from: None,
            to: None,
        });
    }
    if let Some(paused) = turned {
        changes.push(Difference {
            key: "paused".to_owned(),
            from: there.map(|_| is_paused.into()),
            to: Some(paused.into()),
        });
    }
    let action = match there {
        None => Action::Create,
        Some(there) if there.definition.feed != wanted.feed => {
            let entry = Entry::new(Action::Refuse, "subscription", &new.name).changes(changes);
            return Ok(Some(entry.note(format!(
                "the feed of a subscription cannot be changed: give the new one another name, or \
                 `changefeed subscription drop {}` first",
                new.name
            ))));
        }
        Some(_) => Action::Change,
    };
    let mut entry = Entry::new(action, "subscription", &new.name).changes(changes);
    if !same {
        let starts = match there {
            None => feed.starts(db, wanted.from).await?,
            Some(_) => Vec::new(),
        };
        entry = entry.step(Step::PutSubscription(Box::new(wanted), starts));
    }
    if let Some(paused) = turned {
        let reason = paused.then(|| PAUSED.to_owned());
        entry = entry.step(Step::PauseSubscription(new.name.clone(), reason));
    }
    Ok(Some(entry))
}

impl FeedThen {
    fn then(&self) -> Feed {
        match self {
            FeedThen::There(feed) => feed.clone(),
            FeedThen::Created(new) => Feed {
                id: new.id.unwrap_or(changefeed::FeedId(0)),
                name: new.name.clone(),
                comment: None,
                shards: (0..new.shards)
                    .map(|shard| Shard::first(shard, new.sweep_group))
                    .collect(),
                source: new.source.clone(),
                retention: None,
            },
        }
    }

    /// Where each of its shards begins.
    async fn starts(&self, db: &Changefeed, from: After) -> Result<Vec<(ShardId, Option<Cursor>)>> {
        match self {
            FeedThen::There(feed) => {
                let feed = db.feed(feed.name.as_str()).await?;
                feed.starts(from).await
            }
            FeedThen::Created(new) => {
                // Nothing is in it yet but what is backfilled later, which `now` leaves out.
                let start = match from {
                    After::First => None,
                    After::Cursor(cursor) => Some(cursor),
                    After::Last | After::Time(_) => Some(match &new.source {
                        Some(Source::Ulid { .. }) => Cursor::Ulid(Ulid::MIN),
                        _ => Cursor::Number(new.start),
                    }),
                };
                Ok((0..new.shards)
                    .map(|shard| (ShardId(shard), start))
                    .collect())
            }
        }
    }
}
