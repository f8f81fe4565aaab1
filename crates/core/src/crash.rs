//! Named places where a test may kill the process, as a power cut would.

/// Kills this process at once, without any clean-up, when the environment variable
/// `CHANGEFEED_CRASH_AT` names this place, either always (`sweep.after`) or at the n-th passage
/// (`sweep.after:3`). Does nothing in release builds.
pub fn crash_point(place: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(place);
    #[cfg(not(debug_assertions))]
    let _ = place;
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Armed {
        place: String,
        countdown: AtomicU64,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let spec = std::env::var("CHANGEFEED_CRASH_AT").ok()?;
        let (place, passage) = match spec.split_once(':') {
            Some((place, passage)) => (place.to_owned(), passage.parse().ok()?),
            None => (spec, 1),
        };
        Some(Armed {
            place,
            countdown: AtomicU64::new(passage),
        })
    });

    pub(super) fn pass(place: &str) {
        if let Some(armed) = ARMED.as_ref()
            && armed.place == place
            && armed.countdown.fetch_sub(1, Ordering::SeqCst) == 1
        {
            // An abort runs no destructor and flushes nothing: as close to `kill -9` as a
            // process can come by itself.
            std::process::abort();
        }
    }
}
