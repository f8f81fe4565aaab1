//! The event log: not there yet.

use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    CleanUp, Cleaned, EventClaim, EventFilter, EventId, EventStore, EventTrigger, Finished,
    LeasedEvent, LoggedAttempt, LoggedEvent, Redelivery, Result, TriggerState, Wanted,
};

use crate::SqlServerStore;
use crate::error::not_yet;

#[async_trait]
impl EventStore for SqlServerStore {
    async fn claim_events(&self, _: &[Wanted], _: &str, _: Duration) -> Result<Vec<LeasedEvent>> {
        Ok(Vec::new())
    }

    async fn renew_events(&self, _: &[EventClaim], _: Duration) -> Result<Vec<EventClaim>> {
        Ok(Vec::new())
    }

    async fn finish_events(&self, _: &[Finished]) -> Result<Vec<EventClaim>> {
        Ok(Vec::new())
    }

    async fn release_events(&self, _: &[EventClaim]) -> Result<()> {
        Ok(())
    }

    async fn events(&self, _: &EventFilter, _: usize) -> Result<Vec<LoggedEvent>> {
        Ok(Vec::new())
    }

    async fn event(&self, _: EventId) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        Ok(None)
    }

    async fn redeliver(&self, _: &Redelivery) -> Result<u64> {
        Err(not_yet("event triggers"))
    }

    async fn clean_up_events(
        &self,
        _: Option<&EventTrigger>,
        _: CleanUp,
        _: usize,
    ) -> Result<Cleaned> {
        Ok(Cleaned::default())
    }

    async fn trigger_states(&self) -> Result<Vec<TriggerState>> {
        Ok(Vec::new())
    }
}
