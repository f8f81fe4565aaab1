//! Event triggers: not there yet.

use async_trait::async_trait;
use changefeed_core::{
    Backfill, EventId, EventTrigger, Finding, Result, TriggerDefinition, TriggerStore,
};
use serde_json::value::RawValue;

use crate::SqlServerStore;
use crate::error::not_yet;

#[async_trait]
impl TriggerStore for SqlServerStore {
    async fn triggers(&self) -> Result<Vec<EventTrigger>> {
        Ok(Vec::new())
    }

    async fn create_trigger(&self, _: &TriggerDefinition, _: bool) -> Result<EventTrigger> {
        Err(not_yet("event triggers"))
    }

    async fn drop_trigger(&self, _: &EventTrigger) -> Result<()> {
        Err(not_yet("event triggers"))
    }

    async fn pause_trigger(&self, _: &EventTrigger, _: Option<&str>) -> Result<()> {
        Err(not_yet("event triggers"))
    }

    async fn invoke_trigger(&self, _: &EventTrigger, _: &RawValue) -> Result<EventId> {
        Err(not_yet("event triggers"))
    }

    async fn backfill_trigger(&self, _: &EventTrigger, _: usize) -> Result<Backfill> {
        Err(not_yet("event triggers"))
    }

    async fn refresh_triggers(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn capture_findings(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
