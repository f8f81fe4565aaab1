//! Room for connections: each is an open file, and systems begin with few.

/// Files that the program needs besides the connections of its clients and its deliveries: those of the
/// database, of logs, of commands.
const OTHERS: usize = 100;
/// Connections where nobody says how many files there may be.
const UNLIMITED: usize = 10_000;

/// How many connections of clients fit into the files that this process may open, beside this many
/// deliveries.
pub(crate) fn room_for_connections(deliveries: usize) -> usize {
    connections(allow_many(), deliveries)
}

fn connections(files: Option<usize>, deliveries: usize) -> usize {
    let Some(files) = files else {
        return UNLIMITED;
    };
    // Where files are few, half of them are for clients.
    let others = (OTHERS + deliveries).min(files / 2);
    (files - others).clamp(1, 1_000_000)
}

/// Raises the limit of open files of this process as far as it may, and returns it.
#[cfg(unix)]
pub(crate) fn allow_many() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the number of open files could not be raised");
    }
    let files = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(files).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
pub(crate) fn allow_many() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_shared_and_many_leave_room_for_deliveries() {
        assert_eq!(connections(Some(256), 100), 128);
        assert_eq!(connections(Some(1024), 100), 824);
        assert_eq!(connections(Some(1_048_576), 100), 1_000_000);
        assert_eq!(connections(Some(1), 100), 1);
        assert_eq!(connections(None, 100), UNLIMITED);
    }
}
