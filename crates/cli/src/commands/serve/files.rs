//! Room for many connections: each is an open file, and systems begin with few.

/// Raises the number of files that this process may open, as far as it is allowed to.
#[cfg(unix)]
pub(crate) fn allow_many() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the number of open files could not be raised");
    }
}

#[cfg(not(unix))]
pub(crate) fn allow_many() {}
