//! A writer whose transactions commit, roll back, are dropped, cut off and killed.

use std::time::{Duration, SystemTime};

use changefeed_core::{Kind, UlidOptions};
use changefeed_postgres::tokio_postgres::IsolationLevel;
use changefeed_postgres::{PostgresStore, UlidTransaction};
use fastrand::Rng;

use super::{FEED, Fate, Written};

/// Microseconds since 1970.
pub(crate) fn now() -> u128 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_micros()
}

/// A writer to shard 0 of the table `event`, and in some transactions, whose names end with `+`, to shard 1, too.
#[derive(Debug)]
pub struct Writer {
    store: PostgresStore,
    name: String,
    rng: Rng,
    timeout: Duration,
    written: usize,
}

impl Writer {
    /// A writer of that name.
    pub fn new(store: PostgresStore, name: &str, seed: u64, timeout: Duration) -> Self {
        Writer {
            store,
            name: name.to_owned(),
            rng: Rng::with_seed(seed),
            timeout,
            written: 0,
        }
    }

    /// One transaction with a random fate.
    pub async fn write(&mut self) -> Written {
        let both = self.rng.u8(..3) == 0;
        let name = format!(
            "{}-{}{}",
            self.name,
            self.written,
            if both { "+" } else { "" }
        );
        self.written += 1;
        let size = self.rng.usize(1..4);
        let began = now();
        let fate = self.transaction(&name, size, both).await;
        Written {
            name,
            size,
            fate,
            began,
            ended: now(),
        }
    }

    async fn transaction(&mut self, name: &str, size: usize, both: bool) -> Fate {
        let mut options = UlidOptions {
            timeout: self.timeout,
            ..UlidOptions::new(FEED, 0)
        };
        let isolation = match self.rng.u8(..10) {
            0 => IsolationLevel::RepeatableRead,
            1 => IsolationLevel::Serializable,
            _ => IsolationLevel::ReadCommitted,
        };
        // From the beginning, named in either order, or added.
        let adds = both && matches!(isolation, IsolationLevel::ReadCommitted) && self.rng.bool();
        if both && !adds {
            options = options.and(FEED, 1);
            if self.rng.bool() {
                (options.shard, options.others[0].shard) = (1, 0);
            }
        }
        let begun = self.store.begin_ulid_with(&options, isolation).await;
        let mut transaction = match begun {
            Ok(transaction) => transaction,
            Err(error) if matches!(error.kind(), Kind::Busy | Kind::Unavailable) => {
                return Fate::Undone;
            }
            Err(error) => panic!("{name}: {error:?}"),
        };
        if adds && let Err(error) = transaction.add(FEED, 1, Duration::from_secs(30)).await {
            let known = matches!(
                error.kind(),
                Kind::Busy | Kind::Unavailable | Kind::Database
            );
            assert!(known, "{name}: {error:?}");
            return Fate::Undone;
        }
        for n in 0..size {
            self.pause().await;
            for shard in 0..=i32::from(both) {
                let note = format!("{name}/{size}/{n}");
                if let Err(error) = insert(&mut transaction, shard, &note).await {
                    // Judged dead on a machine that stood still: its server has closed the session.
                    assert!(error.is_closed() || error.code().is_some(), "{error:?}");
                    return Fate::Undone;
                }
            }
        }
        self.pause().await;
        match self.rng.u8(..20) {
            0 | 1 => {
                // Whether or not the way back is still there: nothing was committed.
                let _ = transaction.rollback().await;
                Fate::Undone
            }
            2 | 3 => Fate::Undone,
            4 => {
                let killed = transaction
                    .batch_execute("select pg_terminate_backend(pg_backend_pid())")
                    .await;
                assert!(killed.is_err());
                assert!(transaction.commit().await.is_err(), "committed after death");
                Fate::Undone
            }
            5 => {
                let wait = Duration::from_micros(self.rng.u64(..2000));
                match tokio::time::timeout(wait, transaction.commit()).await {
                    Ok(ended) => fate(&ended),
                    Err(_) => Fate::InDoubt,
                }
            }
            _ => fate(&transaction.commit().await),
        }
    }

    async fn pause(&mut self) {
        if self.rng.u8(..4) == 0 {
            tokio::time::sleep(Duration::from_micros(self.rng.u64(..3000))).await;
        }
    }
}

fn fate(ended: &changefeed_core::Result<()>) -> Fate {
    match ended {
        Ok(()) => Fate::Committed,
        Err(error) if error.kind() == Kind::Busy => Fate::Undone,
        // The connection broke: nobody knows how far the commit had come.
        Err(_) => Fate::InDoubt,
    }
}

async fn insert(
    transaction: &mut UlidTransaction,
    shard: i32,
    note: &str,
) -> Result<(), changefeed_postgres::tokio_postgres::Error> {
    let ulid = transaction.next_ulid_of(FEED, shard).unwrap().to_bytes();
    transaction
        .execute(
            "insert into event (shard, ulid, note) values ($1, $2, $3)",
            &[&shard, &ulid.as_slice(), &note],
        )
        .await
        .map(drop)
}
