//! What `doctor` finds.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use uuid::Uuid;

/// A clock that is off by more than this is reported.
const TOLERATED: Duration = Duration::from_secs(1);

/// What `doctor` has to say about one thing.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub subject: String,
    /// One sentence.
    pub message: String,
    /// What to do.
    pub advice: Option<String>,
}

/// How bad a finding is.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Good to know: a limit of this database.
    Note,
    /// Should be looked at.
    Warning,
    /// A promise is at risk.
    Problem,
}

impl Finding {
    /// One of these.
    pub fn new(
        severity: Severity,
        subject: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<Option<String>>,
    ) -> Self {
        Finding {
            severity,
            subject: subject.into(),
            message: message.into(),
            advice: advice.into(),
        }
    }

    /// A shard whose ULIDs are ahead of the database's clock by more than a time hint may be.
    pub fn of_ulids_ahead(feed: Uuid, shard: i32, ahead_ms: i64) -> Self {
        Finding::new(
            Severity::Warning,
            format!("ULIDs of feed {feed} shard {shard}"),
            format!(
                "they are {} ahead of the database's clock: a time hint or a clock was wrong. They keep their order, \
                 but tell that time until the clock has reached it",
                humantime::format_duration(Duration::from_secs(ahead_ms.unsigned_abs() / 1000))
            ),
            "look at the clocks of writers that give time hints, and read this shard by cursors, not by times"
                .to_owned(),
        )
    }

    /// Judges the clock of a server, which said `said` milliseconds since 1970 between two moments of
    /// our clock.
    pub fn of_clock(asked: SystemTime, answered: SystemTime, said: i64) -> Self {
        let since = |time: SystemTime| -> i64 {
            let since = time
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        };
        // Whatever the clock said between the two is right.
        let early = since(asked).saturating_sub(said).max(0);
        let late = said.saturating_sub(since(answered)).max(0);
        let off = Duration::from_millis(early.max(late).unsigned_abs());
        if off <= TOLERATED {
            let message = "the server's and this machine's agree";
            return Finding::new(Severity::Ok, "clock", message, None);
        }
        let direction = if late > 0 { "ahead of" } else { "behind" };
        Finding::new(
            Severity::Warning,
            "clock",
            format!(
                "the server's is {:.1} s {direction} this machine's: leases and schedules follow \
                 the server's, so nothing is lost, but times in logs differ",
                off.as_secs_f64()
            ),
            "synchronise both with the same time servers (NTP)".to_owned(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_judged_by_the_moments_around_the_question() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let judged = |said| Finding::of_clock(at(10_000), at(14_000), said);
        for said in [9_000, 10_000, 12_000, 14_000, 15_000] {
            assert_eq!(judged(said).severity, Severity::Ok, "{said}");
        }
        assert!(judged(15_500).message.contains("1.5 s ahead of"));
        assert!(judged(7_000).message.contains("3.0 s behind"));
    }
}
