//! Leases: who works, until when, and which writes are too late.
//!
//! A lease is an owner, a generation and an expiry that the database's clock judges. The holder
//! trusts it for less time than the database grants, counted from *before* the request was sent,
//! so that a holder never believes in a lease that the database may already have given away.
//!
//! A clock that is set back would keep the lease of a dead owner for as long as the step was. So
//! every grant and renewal has a number, and a candidate that has seen the same number for longer
//! than the lease lasts, by its own monotonic clock, takes the lease from that very renewal.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// A granted lease, as its holder sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// What is leased, for example `sweep/0`.
    pub name: String,
    /// Who holds it.
    pub owner: String,
    /// Grows with every change of owner; writes under the lease match it.
    pub generation: i64,
    trusted_until: Instant,
    renew_at: Instant,
}

impl Lease {
    /// A lease granted for `ttl` by a request that was sent at `asked`.
    pub fn granted(
        name: String,
        owner: String,
        generation: i64,
        asked: Instant,
        ttl: Duration,
    ) -> Self {
        Lease {
            name,
            owner,
            generation,
            // A tenth is left for clocks that run at different speeds.
            trusted_until: asked + ttl.mul_f32(0.9),
            renew_at: asked + ttl / 3,
        }
    }

    /// Whether the holder may still act on it.
    pub fn is_trusted(&self, now: Instant) -> bool {
        now < self.trusted_until
    }

    /// How long until it is time to ask for more.
    pub fn renews_in(&self, now: Instant) -> Duration {
        self.renew_at.saturating_duration_since(now)
    }

    /// Whether it is time to ask for more.
    pub fn wants_renewal(&self, now: Instant) -> bool {
        now >= self.renew_at
    }
}

/// The leases of others that a process was refused, and when it first saw each renewal.
#[derive(Debug, Default)]
pub struct Sightings {
    seen: Mutex<HashMap<String, Sighting>>,
}

#[derive(Debug)]
struct Sighting {
    renewal: i64,
    ttl: Duration,
    since: Instant,
}

impl Sightings {
    /// The renewal that is older than its lease by our clock, if there is one.
    pub fn stale(&self, name: &str, asked: Instant) -> Option<i64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let sighting = seen.get(name)?;
        // Its holder stopped trusting it well before: it asked before we saw the renewal. Half of
        // the time again is left for a renewal that is on its way.
        let outlived = asked.saturating_duration_since(sighting.since) > sighting.ttl.mul_f32(1.5);
        outlived.then_some(sighting.renewal)
    }

    /// Somebody else holds the lease, by an answer that has just arrived.
    pub fn held(&self, name: &str, renewal: i64, ttl: Duration, now: Instant) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get_mut(name) {
            Some(sighting) if sighting.renewal == renewal => {}
            _ => {
                let sighting = Sighting {
                    renewal,
                    ttl,
                    since: now,
                };
                seen.insert(name.to_owned(), sighting);
            }
        }
    }

    /// The lease is ours.
    pub fn granted(&self, name: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.remove(name);
    }
}

/// Who holds a lease, as anybody can see it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeaseHolder {
    /// What is leased.
    pub name: String,
    /// Who holds it.
    pub owner: String,
    /// How often it has changed hands.
    pub generation: i64,
    /// Milliseconds until it expires; negative when it has.
    pub expires_in_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_trusts_a_lease_for_less_time_than_the_database_grants() {
        let asked = Instant::now();
        let ttl = Duration::from_millis(1500);
        let lease = Lease::granted("sweep/0".into(), "me".into(), 1, asked, ttl);
        assert!(lease.is_trusted(asked + Duration::from_millis(1349)));
        assert!(!lease.is_trusted(asked + Duration::from_millis(1351)));
        assert!(!lease.wants_renewal(asked + Duration::from_millis(499)));
        assert!(lease.wants_renewal(asked + Duration::from_millis(500)));
    }

    #[test]
    fn a_renewal_that_is_seen_for_longer_than_its_lease_is_stale() {
        let (sightings, began) = (Sightings::default(), Instant::now());
        let at = |millis| began + Duration::from_millis(millis);
        let ttl = Duration::from_millis(1000);
        assert_eq!(sightings.stale("l", at(0)), None);
        sightings.held("l", 7, ttl, at(0));
        sightings.held("l", 7, ttl, at(1400));
        assert_eq!(sightings.stale("l", at(1500)), None);
        assert_eq!(sightings.stale("l", at(1501)), Some(7));
        assert_eq!(sightings.stale("another", at(1501)), None);
        // Its holder lives.
        sightings.held("l", 8, ttl, at(1600));
        assert_eq!(sightings.stale("l", at(3000)), None);
        assert_eq!(sightings.stale("l", at(3101)), Some(8));
        sightings.granted("l");
        assert_eq!(sightings.stale("l", at(9000)), None);
    }
}
