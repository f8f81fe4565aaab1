//! The values of the variables that definitions name: secrets, mostly.

use std::fmt;
use std::sync::Arc;

/// Looks up variables: those of the environment, unless told otherwise. Definitions are kept in the
/// database and name variables only; the instance that delivers decides what stands behind a name.
#[derive(Clone)]
pub struct Variables(Arc<LookUp>);

type LookUp = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Variables {
    /// Looks them up by a function.
    pub fn new(look_up: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Variables(Arc::new(look_up))
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name)
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
