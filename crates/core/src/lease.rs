//! Leases: who works, until when, and which writes are too late.
//!
//! A lease is an owner, a generation and an expiry that the database's clock judges. The holder
//! trusts it for less time than the database grants, counted from *before* the request was sent,
//! so that a holder never believes in a lease that the database may already have given away.

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

    /// Whether it is time to ask for more.
    pub fn wants_renewal(&self, now: Instant) -> bool {
        now >= self.renew_at
    }
}

/// Who holds a lease, as anybody can see it.
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
}
