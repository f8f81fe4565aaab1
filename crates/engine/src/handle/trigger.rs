//! Event triggers and events, as a library user holds them.

use std::fmt;
use std::sync::Arc;

use crate::sinks::Handler;
use crate::sinks::webhook::{Target, WebhookClient, WebhookOptions, Webhooks, without_secrets};
use crate::{CancellationToken, DispatchOptions, Dispatcher, run_janitor};
use std::time::Duration;

use changefeed_core::view::TriggerView;
use changefeed_core::{
    Backfill, Backoff, CleanUp, Cleaned, Error, Event, EventFilter, EventId, EventTrigger, Finding,
    Kind, LoggedAttempt, LoggedEvent, Redelivery, Remedy, Result, Store, TriggerDefinition,
    TriggerState, Uuid,
};
use serde_json::value::RawValue;

use super::Changefeed;

/// How often an event by hand is tried when the database does not answer.
const INVOKE_TRIES: u32 = 3;

/// An event trigger in its database. Cheap to clone.
#[derive(Clone)]
pub struct TriggerHandle {
    store: Arc<dyn Store>,
    trigger: EventTrigger,
}

impl fmt::Debug for TriggerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TriggerHandle").field(&self.trigger).finish()
    }
}

impl TriggerHandle {
    /// The trigger as it was when it was looked up.
    pub fn definition(&self) -> &EventTrigger {
        &self.trigger
    }

    /// The trigger and its events as people may see them, without its secrets.
    pub fn view(&self, states: &[TriggerState]) -> TriggerView {
        let mut trigger = self.trigger.clone();
        let delivery = &mut trigger.definition.delivery;
        delivery.sink = without_secrets(&delivery.sink);
        let name = &trigger.definition.name;
        TriggerView {
            state: states.iter().find(|s| s.name == *name).cloned(),
            trigger,
        }
    }

    /// Stops deliveries; changes are captured all the same.
    pub async fn pause(&self, reason: &str) -> Result<()> {
        self.store.pause_trigger(&self.trigger, Some(reason)).await
    }

    /// Goes on with deliveries.
    pub async fn resume(&self) -> Result<()> {
        self.store.pause_trigger(&self.trigger, None).await
    }

    /// Sends an event by hand; `new` will be this. It is one event, however often the database has
    /// to be asked.
    pub async fn invoke(&self, payload: Box<RawValue>) -> Result<EventId> {
        let key = Uuid::from_u128(fastrand::u128(..));
        let mut backoff = Backoff::default();
        for _ in 1..INVOKE_TRIES {
            match self.invoke_once(&payload, key).await {
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tokio::time::sleep(backoff.failed()).await;
                }
                done => return done,
            }
        }
        self.invoke_once(&payload, key).await
    }

    /// The same for a caller who repeats a call whose outcome is unknown: there is one event for
    /// each key. Keys are remembered for a day.
    pub async fn invoke_once(&self, payload: &RawValue, key: Uuid) -> Result<EventId> {
        self.store.invoke_trigger(&self.trigger, payload, key).await
    }

    /// Makes events of the next existing rows.
    pub async fn backfill(&self, batch: usize) -> Result<Backfill> {
        self.store.backfill_trigger(&self.trigger, batch).await
    }

    /// Removes the trigger; its events stay in the log.
    pub async fn drop_trigger(self) -> Result<()> {
        self.store.drop_trigger(&self.trigger).await
    }

    /// Gives the trigger's events to an async function, instead of a webhook. An error, a panic
    /// or more time than the trigger's timeout is a failed attempt and retried as its definition
    /// says. Any number of processes may do this at the same time.
    pub fn handler<F, W, E>(&self, options: DispatchOptions, function: F) -> Dispatcher
    where
        F: Fn(Event) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let name = self.trigger.definition.name.clone();
        let handler = Handler::new(name, function);
        Dispatcher::new(self.store.clone(), Arc::new(handler), options)
    }
}

impl Changefeed {
    /// All event triggers.
    pub async fn triggers(&self) -> Result<Vec<TriggerHandle>> {
        let triggers = self.store().triggers().await?;
        Ok(triggers
            .into_iter()
            .map(|trigger| self.trigger_handle(trigger))
            .collect())
    }

    fn trigger_handle(&self, trigger: EventTrigger) -> TriggerHandle {
        TriggerHandle {
            store: self.store().clone(),
            trigger,
        }
    }

    /// The event trigger with this name.
    pub async fn trigger(&self, name: &str) -> Result<TriggerHandle> {
        let triggers = self.store().triggers().await?;
        let known: Vec<String> = triggers
            .iter()
            .map(|t| t.definition.name.to_string())
            .collect();
        triggers
            .into_iter()
            .find(|t| t.definition.name.as_str() == name)
            .map(|trigger| self.trigger_handle(trigger))
            .ok_or_else(|| {
                Error::not_found(format!("there is no trigger '{name}'")).advise(
                    if known.is_empty() {
                        "`changefeed trigger create` makes one".to_owned()
                    } else {
                        format!("the triggers are {}", known.join(", "))
                    },
                )
            })
    }

    /// Creates an event trigger, or with `replace` changes one, which stays on its table.
    pub async fn create_trigger(
        &self,
        definition: &TriggerDefinition,
        replace: bool,
    ) -> Result<TriggerHandle> {
        let whose = format!("trigger '{}'", definition.name);
        Target::check(&whose, &definition.delivery.sink)?;
        if replace {
            let triggers = self.store().triggers().await?;
            if let Some(there) = triggers
                .iter()
                .find(|t| t.definition.name == definition.name)
            {
                self.stays_on_its_table(there, definition).await?;
            }
        }
        let trigger = self.store().create_trigger(definition, replace).await?;
        Ok(self.trigger_handle(trigger))
    }

    /// Refuses a definition that takes a trigger to another table: its events would be delivered as
    /// those of a table that they do not come from. A table that was renamed is no other.
    pub async fn stays_on_its_table(
        &self,
        there: &EventTrigger,
        wanted: &TriggerDefinition,
    ) -> Result<()> {
        let name = &there.definition.name;
        let before = match self.store().find_table(&there.definition.table).await {
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            before => before?,
        };
        if before == self.store().find_table(&wanted.table).await? {
            return Ok(());
        }
        Err(Error::new(
            Kind::AlreadyExists,
            format!("trigger '{name}' is on table {before}"),
        )
        .advise("drop it first, or give the new one another name"))
    }

    /// How the events of each trigger stand.
    pub async fn trigger_states(&self) -> Result<Vec<TriggerState>> {
        self.store().trigger_states().await
    }

    /// Events of the log, newest first.
    pub async fn events(&self, filter: &EventFilter, limit: usize) -> Result<Vec<LoggedEvent>> {
        self.store().events(filter, limit).await
    }

    /// An event with all attempts.
    pub async fn event(&self, id: EventId) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        self.store().event(id).await
    }

    /// Has events delivered again. Returns how many.
    pub async fn redeliver(&self, which: &Redelivery) -> Result<u64> {
        self.redeliver_once(which, Uuid::from_u128(fastrand::u128(..)))
            .await
    }

    /// The same for a caller who repeats a call whose outcome is unknown: what was done with the same
    /// key is not done again. Keys are remembered for a day.
    pub async fn redeliver_once(&self, which: &Redelivery, key: Uuid) -> Result<u64> {
        self.store().redeliver(which, key).await
    }

    /// Removes a batch of old events.
    pub async fn clean_up_events(
        &self,
        trigger: Option<&TriggerHandle>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned> {
        let trigger = trigger.map(TriggerHandle::definition);
        self.store().clean_up_events(trigger, what, batch).await
    }

    /// Removes a batch of old attempts of finished events, and keeps the events.
    pub async fn clean_up_attempts(
        &self,
        trigger: Option<&TriggerHandle>,
        after: Duration,
        batch: usize,
    ) -> Result<Cleaned> {
        let trigger = trigger.map(TriggerHandle::definition);
        self.store().clean_up_attempts(trigger, after, batch).await
    }

    /// Removes old events of triggers whose definition asks for it, until told to stop.
    pub async fn clean_up_on_schedule(
        &self,
        owner: &str,
        shutdown: CancellationToken,
    ) -> Result<()> {
        run_janitor(self.store().clone(), owner.to_owned(), shutdown).await
    }

    /// A dispatcher that delivers the events of every trigger that has a webhook.
    pub fn webhook_dispatcher(
        &self,
        webhooks: WebhookOptions,
        options: DispatchOptions,
    ) -> Result<Dispatcher> {
        let deliverer = Webhooks::new(WebhookClient::new(webhooks)?);
        Ok(Dispatcher::new(
            self.store().clone(),
            Arc::new(deliverer),
            options,
        ))
    }

    /// What keeps changes from being captured, and what this database cannot capture at all.
    pub async fn capture_findings(&self) -> Result<Vec<Finding>> {
        self.store().capture_findings().await
    }
}
