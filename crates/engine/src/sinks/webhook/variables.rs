//! The values of the variables that definitions name: secrets, mostly.

use std::fmt;
use std::sync::Arc;

use changefeed_core::{AllowedVariables, Result};

/// Looks up variables: those of the environment, unless told otherwise. Definitions are kept in the
/// database and name variables only; the instance that delivers decides what stands behind a name,
/// and which names any definition may use. Names that were granted to a definition need no leave.
#[derive(Clone)]
pub struct Variables {
    look_up: Arc<LookUp>,
    allowed: AllowedVariables,
}

type LookUp = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Variables {
    /// Looks them up by a function.
    pub fn new(look_up: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Variables {
            look_up: Arc::new(look_up),
            allowed: AllowedVariables::default(),
        }
    }

    /// Lets any definition name these.
    pub fn allowing(self, allowed: AllowedVariables) -> Self {
        Variables { allowed, ..self }
    }

    /// The value of a variable, without checking the grant.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.look_up)(name)
    }

    /// The value of a variable, for a definition to which these were granted. Whether one that it may
    /// not name exists is not looked at.
    pub fn read(&self, whose: &str, name: &str, granted: &[String]) -> Result<Option<String>> {
        if !granted.iter().any(|granted| granted == name) {
            self.allowed.check(whose, name)?;
        }
        Ok(self.get(name))
    }
}

impl Default for Variables {
    fn default() -> Self {
        Variables::new(|name| std::env::var(name).ok())
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Variables")
    }
}
