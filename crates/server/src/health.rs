//! Whether the loops of this instance are alive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The loops of an instance and what became of them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Why a loop has ended; nothing while it runs.
    loops: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

impl Health {
    /// A loop runs.
    pub fn runs(&self, name: &str) {
        self.set(name, None);
    }

    /// A loop has ended, and this is why.
    pub fn ended(&self, name: &str, why: impl Into<String>) {
        self.set(name, Some(why.into()));
    }

    fn set(&self, name: &str, state: Option<String>) {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.insert(name.to_owned(), state);
    }

    /// Each loop and, if it has ended, why.
    pub(crate) fn loops(&self) -> BTreeMap<String, Option<String>> {
        let loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.clone()
    }
}
