//! Watches: not there yet.

use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    Batch, BatchOutcome, Finding, Result, Settled, Take, Watch, WatchFrom, WatchSettings,
    WatchSpec, WatchStatus, WatchStore,
};

use crate::SqlServerStore;
use crate::error::not_yet;

#[async_trait]
impl WatchStore for SqlServerStore {
    async fn open_watch(&self, _: &WatchSpec) -> Result<Watch> {
        Err(not_yet("watches"))
    }

    async fn watches(&self) -> Result<Vec<Watch>> {
        Ok(Vec::new())
    }

    async fn watch_status(&self, _: &Watch, _: usize) -> Result<WatchStatus> {
        Err(not_yet("watches"))
    }

    async fn take(&self, _: &Watch, _: Take<'_>) -> Result<Option<Batch>> {
        Err(not_yet("watches"))
    }

    async fn renew(&self, _: &Watch, _: &Batch, _: Duration) -> Result<u64> {
        Err(not_yet("watches"))
    }

    async fn settle(
        &self,
        _: &Watch,
        _: &Batch,
        _: &BatchOutcome,
        _: &WatchSettings,
    ) -> Result<Settled> {
        Err(not_yet("watches"))
    }

    async fn retry_parked(&self, _: &Watch) -> Result<u64> {
        Err(not_yet("watches"))
    }

    async fn reset_watch(&self, _: &Watch, _: WatchFrom) -> Result<()> {
        Err(not_yet("watches"))
    }

    async fn drop_watch(&self, _: &Watch) -> Result<()> {
        Err(not_yet("watches"))
    }

    async fn watch_findings(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
