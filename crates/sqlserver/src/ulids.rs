//! What can be seen of ULID transactions from outside.

use async_trait::async_trait;
use changefeed_core::{Incident, Result, UlidStore};

use crate::SqlServerStore;

#[async_trait]
impl UlidStore for SqlServerStore {
    async fn incidents(&self) -> Result<Vec<Incident>> {
        Ok(Vec::new())
    }
}
