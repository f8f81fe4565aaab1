//! What an attempt to deliver an event leads to: success, another attempt, or the end. Pure: an
//! answer goes in, a verdict comes out.

use std::time::Duration;

use crate::{Error, Result};

/// When to try again, and when to stop.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// How many more attempts after a first one that failed.
    pub num_retries: u32,
    /// The wait before the next attempt.
    pub interval: Duration,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// How the wait grows.
    pub growth: Growth,
    /// Statuses after which there is no point in trying again.
    pub final_statuses: Vec<u16>,
    /// The longest wait that a receiver may ask for with `Retry-After`.
    pub max_retry_after: Duration,
}

/// How the wait grows from one attempt to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Growth {
    /// Not at all.
    #[default]
    Fixed,
    /// It doubles, up to a cap, and is then shortened by chance by up to a half, so that events
    /// that failed together do not all come back together.
    Exponential {
        /// The longest wait.
        cap: Duration,
    },
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            num_retries: 5,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            growth: Growth::Fixed,
            final_statuses: Vec::new(),
            max_retry_after: Duration::from_secs(3600),
        }
    }
}

/// What came back from a receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer {
    /// A complete answer.
    Status {
        /// Its status.
        status: u16,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// Nothing, or nothing that made sense, in time.
    None,
    /// We were stopped before there could be an answer; nobody knows what the receiver did.
    CutOff,
}

/// What becomes of an event after an attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It arrived.
    Delivered,
    /// It is tried again after this wait.
    Retry {
        /// Counted by the database's clock from when it is written down.
        after: Duration,
    },
    /// It is kept as a dead letter.
    GiveUp,
    /// The receiver is gone for good (410): the trigger is paused, and the event waits with it.
    Pause,
}

/// How often an attempt may be cut off by a crash before the event itself is suspected.
pub const MAX_CUT_OFF: u32 = 5;

impl Retry {
    /// The longest number of attempts: more would be a mistake.
    pub const MAX_RETRIES: u32 = 10_000;

    /// Judges an attempt. `failed_before` counts earlier attempts that are known to have failed
    /// (one that a crash cut off is not: that was our fault, not the receiver's), `dice` is a
    /// random number from 0 to 1.
    pub fn judge(&self, answer: Answer, failed_before: u32, dice: f64) -> Verdict {
        let (status, asked) = match answer {
            Answer::Status {
                status,
                retry_after,
            } => (status, retry_after),
            Answer::None => (0, None),
            Answer::CutOff => {
                return Verdict::Retry {
                    after: Duration::ZERO,
                };
            }
        };
        match status {
            200..=299 => Verdict::Delivered,
            410 => Verdict::Pause,
            _ if failed_before >= self.num_retries || self.final_statuses.contains(&status) => {
                Verdict::GiveUp
            }
            _ => Verdict::Retry {
                after: match asked {
                    Some(asked) => asked.min(self.max_retry_after),
                    None => self.wait(failed_before, dice),
                },
            },
        }
    }

    /// The wait after the attempt that failed after `failed_before` others.
    pub fn wait(&self, failed_before: u32, dice: f64) -> Duration {
        match self.growth {
            Growth::Fixed => self.interval,
            Growth::Exponential { cap } => {
                let doubled = 2u32
                    .checked_pow(failed_before)
                    .and_then(|factor| self.interval.checked_mul(factor))
                    .unwrap_or(cap);
                doubled.min(cap).mul_f64(1.0 - dice.clamp(0.0, 1.0) / 2.0)
            }
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.num_retries > Self::MAX_RETRIES {
            return Err(Error::invalid(format!(
                "{} retries are too many: use at most {}",
                self.num_retries,
                Self::MAX_RETRIES
            )));
        }
        const YEAR: Duration = Duration::from_secs(366 * 86_400);
        if self.timeout.is_zero() || self.timeout > YEAR {
            return Err(Error::invalid(
                "a timeout must be more than 0 and at most a year",
            ));
        }
        let cap = match self.growth {
            Growth::Fixed => Duration::ZERO,
            Growth::Exponential { cap } => cap,
        };
        if self.interval.max(cap).max(self.max_retry_after) > YEAR {
            return Err(Error::invalid("a wait between attempts is at most a year"));
        }
        if let Some(bad) = self
            .final_statuses
            .iter()
            .find(|s| !(300..=599).contains(*s))
        {
            return Err(Error::invalid(format!(
                "{bad} cannot be a final status: name statuses from 300 to 599"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(status: u16) -> Answer {
        Answer::Status {
            status,
            retry_after: None,
        }
    }

    fn asks(status: u16, seconds: u64) -> Answer {
        Answer::Status {
            status,
            retry_after: Some(Duration::from_secs(seconds)),
        }
    }

    #[test]
    fn success_is_2xx_and_nothing_else() {
        let retry = Retry {
            num_retries: 1,
            ..Retry::default()
        };
        for code in 100..600 {
            let verdict = retry.judge(status(code), 0, 0.0);
            match code {
                200..=299 => assert_eq!(verdict, Verdict::Delivered),
                410 => assert_eq!(verdict, Verdict::Pause),
                _ => assert_eq!(
                    verdict,
                    Verdict::Retry {
                        after: Duration::from_secs(10)
                    },
                    "{code}"
                ),
            }
        }
    }

    #[test]
    fn retries_are_used_up_even_when_the_receiver_asks_for_more() {
        let retry = Retry {
            num_retries: 2,
            ..Retry::default()
        };
        assert_eq!(
            retry.judge(asks(503, 7), 1, 0.0),
            Verdict::Retry {
                after: Duration::from_secs(7)
            }
        );
        assert_eq!(retry.judge(asks(503, 7), 2, 0.0), Verdict::GiveUp);
        assert_eq!(
            retry.judge(asks(503, 1_000_000), 0, 0.0),
            Verdict::Retry {
                after: Duration::from_secs(3600)
            }
        );
    }

    #[test]
    fn a_final_status_ends_it_at_once() {
        let retry = Retry {
            num_retries: 5,
            final_statuses: vec![422],
            ..Retry::default()
        };
        assert_eq!(retry.judge(status(422), 0, 0.0), Verdict::GiveUp);
        assert_eq!(retry.judge(Answer::None, 5, 0.0), Verdict::GiveUp);
    }

    #[test]
    fn what_was_cut_off_uses_up_nothing() {
        assert_eq!(
            Retry::default().judge(Answer::CutOff, 0, 0.0),
            Verdict::Retry {
                after: Duration::ZERO
            }
        );
    }

    proptest! {
        #[test]
        fn exponential_waits_stay_between_half_and_whole(
            interval in 1u64..100_000, cap in 1u64..1_000_000, failed in 0u32..200, dice in 0.0f64..1.0
        ) {
            let cap = Duration::from_millis(cap);
            let retry = Retry {
                interval: Duration::from_millis(interval),
                growth: Growth::Exponential { cap },
                ..Retry::default()
            };
            let wait = retry.wait(failed, dice);
            prop_assert!(wait <= cap);
            let full = retry.wait(failed, 0.0);
            prop_assert!(wait <= full && wait >= full / 2);
            prop_assert!(retry.wait(failed + 1, 0.0) >= full);
        }

        #[test]
        fn nothing_is_tried_for_ever(
            retries in 0u32..50, answers in prop::collection::vec((400u16..600, any::<bool>()), 60)
        ) {
            let retry = Retry { num_retries: retries, ..Retry::default() };
            let mut failed = 0;
            for (code, polite) in answers {
                if code == 410 { continue; }
                let answer = if polite { asks(code, 1) } else { status(code) };
                match retry.judge(answer, failed, 0.5) {
                    Verdict::Retry { .. } => failed += 1,
                    verdict => { prop_assert_eq!(verdict, Verdict::GiveUp); break; }
                }
            }
            prop_assert_eq!(failed, retries);
        }
    }
}
