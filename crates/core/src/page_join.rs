//! How a store joins the pages of a feed with its rows: SQL that is made once and remembered until it
//! stops working.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::FeedId;

/// The SQL of a page.
#[derive(Debug)]
pub struct PageJoin {
    /// The query.
    pub sql: String,
    /// What it gives.
    pub rows: PageRows,
}

/// What a page has beside numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageRows {
    /// Nothing.
    None,
    /// The row as it is now.
    Current,
    /// Operation, key, whether there are images, the row before, and the row after or as it is now.
    Captured,
    /// Operation, old and new row of an event.
    Events,
}

/// The joins that are known, by feed.
#[derive(Debug, Default)]
pub struct PageJoins(Mutex<HashMap<FeedId, Arc<PageJoin>>>);

impl PageJoins {
    /// What was remembered for a feed.
    pub fn known(&self, feed: FeedId) -> Option<Arc<PageJoin>> {
        self.all().get(&feed).cloned()
    }

    /// Remembers it.
    pub fn remember(&self, feed: FeedId, join: PageJoin) -> Arc<PageJoin> {
        let join = Arc::new(join);
        self.all().insert(feed, join.clone());
        join
    }

    /// Has it made anew: the feed or its table is not what it was.
    pub fn forget(&self, feed: FeedId) {
        self.all().remove(&feed);
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<FeedId, Arc<PageJoin>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
