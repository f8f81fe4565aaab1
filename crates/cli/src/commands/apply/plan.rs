//! What has to be done so that a database has what a file says.

use changefeed::{
    Changefeed, Error, EventTrigger, Feed, Fold, Kind, NewFeed, Result, Shard, Sink,
    Source as FeedSource, Step, Subscription, SubscriptionDefinition, TriggerDefinition, Watch,
    WatchSpec,
};
use serde::Serialize;

use super::keys::{self, Difference, Keys, differences};
use super::subscriptions::{self, FeedThen};
use super::wanted::{Wanted, taken};
use crate::config::{Place, Written};

/// What is done to a definition.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    Create,
    Change,
    Drop,
    /// It cannot be changed into what is wanted.
    Refuse,
}

/// One definition that is not as it should be.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub(super) action: Action,
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) changes: Vec<Difference>,
    /// What is lost, or why it cannot be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    #[serde(skip)]
    steps: Vec<Step>,
}

/// All of them, in the order in which they are done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) entries: Vec<Entry>,
    /// What the file does not say anything about.
    pub(super) left: Vec<String>,
}

impl Plan {
    /// Compares. What is not in the file is dropped only with `prune`.
    pub(super) async fn make(db: &Changefeed, wanted: &Wanted, prune: bool) -> Result<Plan> {
        let feeds = db.store().feeds().await?;
        let triggers = db.store().triggers().await?;
        let watches = db.store().watches().await?;
        let subscriptions = db.store().subscriptions().await?;
        let mut plan = Plan::default();
        let mut drops_after = Vec::new();
        // Before their feeds. Those of programs of their own are left alone.
        let ours = subscriptions
            .iter()
            .filter(|s| s.definition.sink != Sink::InProcess);
        for there in ours.filter(|s| !wanted.has_subscription(s)) {
            plan.superfluous(subscriptions::drop(there), prune);
        }
        for there in triggers.iter().filter(|t| !wanted.has_trigger(t)) {
            plan.superfluous(drop_trigger(there), prune);
        }
        for there in feeds.iter().filter(|f| !wanted.has_feed(f)) {
            // One that a trigger writes to until it is changed goes after that.
            let written = triggers
                .iter()
                .any(|t| writes_to(t, there) && wanted.has_trigger(t));
            match written && prune {
                true => drops_after.push(drop_feed(there)),
                false => plan.superfluous(drop_feed(there), prune),
            }
        }
        // Those that have their numbers go before those that get the next one that is free.
        let mut numbered: Vec<&Written<NewFeed>> = wanted.feeds.iter().collect();
        numbered.sort_by_key(|new| new.value.id.is_none());
        for Written { value: new, place } in numbered {
            if let Some(there) = feeds.iter().find(|f| f.name == new.name) {
                let changed = change_feed(there, new, db.store().dialect().fold);
                plan.entries.extend(changed);
                continue;
            }
            let dropped = |there: &Feed| plan.drops_feed(there);
            let mut others = feeds.iter().filter(|f| !dropped(f));
            if let Some(other) = others.find(|f| Some(f.id) == new.id) {
                return Err(taken(place, new, &other.name));
            }
            plan.entries.push(create_feed(new));
        }
        for (new, paused) in &wanted.triggers {
            let there = triggers.iter().find(|t| t.definition.name == new.name);
            let mut entry = put_trigger(there, new, *paused);
            if let (Some(there), Some(changed)) = (there, &mut entry)
                && let Err(error) = db.stays_on_its_table(there, new).await
            {
                changed.refuse(error)?;
            }
            plan.entries.extend(entry);
        }
        plan.entries.extend(drops_after);
        // Only those that `serve` runs: others belong to programs of their own.
        let defined = watches.iter().filter(|w| w.definition.is_some());
        for there in defined.filter(|w| !wanted.watches.iter().any(|n| n.name == w.name)) {
            plan.superfluous(drop_watch(there), prune);
        }
        for new in &wanted.watches {
            let there = watches.iter().find(|w| w.name == new.name);
            plan.entries.extend(put_watch(there, new));
        }
        for (new, paused, place) in &wanted.subscriptions {
            let there = subscriptions.iter().find(|s| s.definition.name == new.name);
            let feed = plan.feed_of(&feeds, wanted, new, place)?;
            let put = subscriptions::put(db, there, new, *paused, &feed).await;
            plan.entries.extend(put.map_err(|e| place.of(e))?);
        }
        Ok(plan)
    }

    /// Whether a feed is gone by the time that others are created.
    fn drops_feed(&self, there: &Feed) -> bool {
        let mut steps = self.entries.iter().flat_map(|e| &e.steps);
        steps.any(|step| matches!(step, Step::DropFeed(feed) if feed.id == there.id))
    }

    /// The feed of a subscription, as it is when these steps are done.
    fn feed_of(
        &self,
        feeds: &[Feed],
        wanted: &Wanted,
        of: &SubscriptionDefinition,
        place: &Place,
    ) -> Result<FeedThen> {
        if let Some(new) = wanted.feeds.iter().find(|f| f.value.name == of.feed) {
            let there = feeds.iter().find(|f| f.name == of.feed);
            return Ok(match there.filter(|there| !self.drops_feed(there)) {
                Some(there) => FeedThen::There(Feed {
                    source: new.value.source.clone().or(there.source.clone()),
                    ..there.clone()
                }),
                None => FeedThen::Created(new.value.clone()),
            });
        }
        let there = feeds.iter().find(|f| f.name == of.feed);
        if let Some(there) = there.filter(|there| !self.drops_feed(there)) {
            return Ok(FeedThen::There(there.clone()));
        }
        let bound = |t: &TriggerDefinition| {
            let binding = t.capture.feed.as_ref();
            binding.is_some_and(|b| b.feed == of.feed)
        };
        if wanted.triggers.iter().any(|(t, _)| bound(t)) {
            return Ok(FeedThen::Created(NewFeed {
                source: Some(FeedSource::Events),
                ..NewFeed::new(of.feed.clone())
            }));
        }
        let what = format!(
            "subscription '{}' is of feed '{}', which there is not",
            of.name, of.feed
        );
        Err(place
            .error(what)
            .advise("define [feeds.NAME] too, or name another feed"))
    }

    /// Whether it shows the same as another.
    pub(super) fn is_like(&self, other: &Plan) -> bool {
        let shown = |plan: &Plan| serde_json::to_string(&plan.entries).ok();
        shown(self) == shown(other)
    }

    fn superfluous(&mut self, entry: Entry, prune: bool) {
        match prune {
            true => self.entries.push(entry),
            false => self.left.push(format!("{} {}", entry.kind, entry.name)),
        }
    }

    pub(super) fn count(&self, action: Action) -> usize {
        self.entries.iter().filter(|e| e.action == action).count()
    }

    pub(super) fn steps(&self) -> Vec<Step> {
        let steps = self.entries.iter().flat_map(|e| e.steps.clone());
        steps.collect()
    }
}

impl Wanted {
    fn has_trigger(&self, there: &EventTrigger) -> bool {
        let mut names = self.triggers.iter().map(|(t, _)| &t.name);
        names.any(|name| *name == there.definition.name)
    }

    fn has_subscription(&self, there: &Subscription) -> bool {
        let mut names = self.subscriptions.iter().map(|(s, ..)| &s.name);
        names.any(|name| *name == there.definition.name)
    }

    /// Whether a feed is defined, or belongs to a trigger that is.
    fn has_feed(&self, there: &Feed) -> bool {
        let bound = |t: &TriggerDefinition| {
            let binding = t.capture.feed.as_ref();
            binding.is_some_and(|b| b.feed == there.name)
        };
        self.feeds.iter().any(|f| f.value.name == there.name)
            || self.triggers.iter().any(|(t, _)| bound(t))
    }
}

fn writes_to(trigger: &EventTrigger, feed: &Feed) -> bool {
    let binding = trigger.definition.capture.feed.as_ref();
    binding.is_some_and(|b| b.feed == feed.name)
}

impl Entry {
    /// Makes it one that is not done, because of what already is.
    fn refuse(&mut self, because: Error) -> Result<()> {
        if because.kind() != Kind::AlreadyExists {
            return Err(because);
        }
        let advice = because.advice().unwrap_or_default();
        self.note = Some(format!("{because}: {advice}"));
        self.action = Action::Refuse;
        self.steps.clear();
        Ok(())
    }

    pub(super) fn new(action: Action, kind: &'static str, name: impl ToString) -> Self {
        Entry {
            action,
            kind,
            name: name.to_string(),
            changes: Vec::new(),
            note: None,
            steps: Vec::new(),
        }
    }

    pub(super) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub(super) fn changes(mut self, changes: Vec<Difference>) -> Self {
        self.changes = changes;
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

fn drop_feed(there: &Feed) -> Entry {
    Entry::new(Action::Drop, "feed", &there.name)
        .note("its changes and the cursors of its consumers are lost")
        .step(Step::DropFeed(there.clone()))
}

fn drop_trigger(there: &EventTrigger) -> Entry {
    Entry::new(Action::Drop, "trigger", &there.definition.name)
        .note("its events stay in the log; those that were not delivered are archived")
        .step(Step::DropTrigger(there.clone()))
}

fn drop_watch(there: &Watch) -> Entry {
    Entry::new(Action::Drop, "watch", &there.name)
        .note("the changes that wait in its backlog are lost")
        .step(Step::DropWatch(there.clone()))
}

fn create_feed(new: &NewFeed) -> Entry {
    Entry::new(Action::Create, "feed", &new.name)
        .changes(differences(&Keys::new(), &keys::new_feed(new)))
        .step(Step::CreateFeed(new.clone()))
}

fn change_feed(there: &Feed, new: &NewFeed, fold: Fold) -> Option<Entry> {
    let mut changes = differences(&keys::feed(there, new), &keys::new_feed(new));
    if fold == Fold::Keep {
        // The database finds tables and columns without regard to case, and so do we.
        changes.retain(|c| !(names_something(&c.key) && same_but_for_case(c)));
    }
    if changes.is_empty() {
        return None;
    }
    let fixed: Vec<&str> = changes
        .iter()
        .map(|c| c.key.as_str())
        .filter(|key| {
            !matches!(
                *key,
                "comment" | "sweep_group" | "images" | "trim_after" | "trim_unread_after"
            )
        })
        .collect();
    if fixed == ["shards"] {
        let entry = Entry::new(Action::Refuse, "feed", &new.name).changes(changes);
        return Some(entry.note(format!(
            "the number of shards is changed by `changefeed feed reshard {} --shards {}`: its readers have to go on \
             in the new ones",
            new.name, new.shards
        )));
    }
    if !fixed.is_empty() {
        let fixed = fixed.join(", ");
        let entry = Entry::new(Action::Refuse, "feed", &new.name).changes(changes);
        return Some(entry.note(format!(
            "{fixed} of a feed cannot be changed: its readers and their cursors depend on it. Write \
             what it was, give the new feed another name, or `changefeed feed drop {}` first",
            new.name
        )));
    }
    let changed = Feed {
        comment: new.comment.clone(),
        shards: there
            .shards
            .iter()
            .map(|s| Shard {
                sweep_group: new.sweep_group,
                ..s.clone()
            })
            .collect(),
        source: there.source.clone().map(|mut source| {
            source.keep_images(new.source.as_ref().is_some_and(FeedSource::keeps_images));
            source
        }),
        retention: new.retention,
        ..there.clone()
    };
    let entry = Entry::new(Action::Change, "feed", &new.name).changes(changes);
    Some(entry.step(Step::ChangeFeed(changed)))
}

fn names_something(key: &str) -> bool {
    !matches!(
        key,
        "comment"
            | "id"
            | "images"
            | "shards"
            | "sweep_group"
            | "start"
            | "trim_after"
            | "trim_unread_after"
            | "when"
    )
}

fn same_but_for_case(change: &Difference) -> bool {
    match (&change.from, &change.to) {
        (Some(from), Some(to)) => from.to_string().eq_ignore_ascii_case(&to.to_string()),
        _ => false,
    }
}

/// What stands in `paused` of a trigger that a file has paused.
pub(super) const PAUSED: &str = "by changefeed.toml";

fn put_trigger(
    there: Option<&EventTrigger>,
    new: &TriggerDefinition,
    paused: Option<bool>,
) -> Option<Entry> {
    let old = there.map(|t| &t.definition);
    let same = old == Some(new);
    let is_paused = there.is_some_and(|t| t.paused.is_some());
    let turned = paused.filter(|paused| *paused != is_paused);
    if same && turned.is_none() {
        return None;
    }
    let before = old.map_or_else(Keys::new, keys::trigger);
    let mut changes = differences(&before, &keys::trigger(new));
    if changes.is_empty() {
        let before = old.map(|d| &d.delivery.sink);
        changes.extend(newly_granted(before, &new.delivery.sink));
    }
    if !same && changes.is_empty() {
        // Only values that are not shown are different.
        changes.push(Difference {
            key: "webhook or header".to_owned(),
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
    let mut entry =
        match there {
            None => Entry::new(Action::Create, "trigger", &new.name)
                .step(Step::CreateTrigger(new.clone())),
            Some(_) if same => Entry::new(Action::Change, "trigger", &new.name),
            Some(_) => Entry::new(Action::Change, "trigger", &new.name)
                .step(Step::ChangeTrigger(new.clone())),
        };
    if let Some(paused) = turned {
        let reason = paused.then(|| PAUSED.to_owned());
        entry = entry.step(Step::PauseTrigger(new.name.clone(), reason));
    }
    Some(entry.changes(changes))
}

/// Variables that become granted because the file names them; a definition that came over HTTP has
/// only named them.
pub(super) fn newly_granted(before: Option<&Sink>, after: &Sink) -> Option<Difference> {
    let granted = |sink: &Sink| sink.as_webhook().map(|w| w.granted_env.clone());
    let (before, after) = (granted(before?)?, granted(after)?);
    if before == after {
        return None;
    }
    let list = |names: Vec<String>| (!names.is_empty()).then(|| names.into());
    Some(Difference {
        key: "granted variables".to_owned(),
        from: list(before),
        to: list(after),
    })
}

fn put_watch(there: Option<&Watch>, new: &WatchSpec) -> Option<Entry> {
    let after = keys::watch(&new.table, new.definition.as_ref());
    let put = Step::PutWatch(new.clone());
    let Some(there) = there else {
        let changes = differences(&Keys::new(), &keys::new_watch(new, after));
        let entry = Entry::new(Action::Create, "watch", &new.name).changes(changes);
        return Some(entry.step(put));
    };
    let before = keys::watch(&there.table, there.definition.as_ref());
    let mut changes = differences(&before, &after);
    if changes.is_empty() {
        let before = there.definition.as_ref().map(|d| &d.sink);
        if let Some(wanted) = &new.definition {
            changes.extend(newly_granted(before, &wanted.sink));
        }
    }
    if changes.is_empty() {
        return None;
    }
    if there.table != new.table {
        let entry = Entry::new(Action::Refuse, "watch", &new.name).changes(changes);
        return Some(entry.note(format!(
            "the table of a watch cannot be changed: give the new watch another name, or \
             `changefeed watch drop {}` first",
            new.name
        )));
    }
    let entry = Entry::new(Action::Change, "watch", &new.name).changes(changes);
    Some(entry.step(put))
}
