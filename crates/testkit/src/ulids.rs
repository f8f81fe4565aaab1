//! ULID transactions: the table they write to, a writer whose transactions meet every fate, and
//! the checker of what it wrote.

mod writer;

pub use changefeed_certify::history::ulids::{Fate, Found, Written, check};
pub use writer::Writer;

use changefeed_core::{FeedId, NewFeed, Source, TableName, Ulid, Uuid};

use crate::backend::name;

/// The feed of all ULID transactions here.
pub const FEED: Uuid = Uuid::from_u128(0x8027_0756_deeb_11ed_91f2_4f03_a365_d3f8);

/// Makes the table on PostgreSQL.
pub const POSTGRES_TABLE: &str = "create table event (shard int not null, ulid bytea not null, note text not null, \
     primary key (shard, ulid))";

/// The feed that reads the table `event`, with the id 38.
pub fn feed_of_events(shards: i16) -> NewFeed {
    NewFeed {
        id: Some(FeedId(38)),
        shards,
        source: Some(Source::Ulid {
            feed: FEED,
            table: TableName::unqualified("event"),
            shard_column: "shard".into(),
            ulid_column: "ulid".into(),
        }),
        ..NewFeed::new(name("events"))
    }
}

/// What a case writes in one ULID transaction.
#[derive(Debug, Clone)]
pub struct UlidWrite {
    /// One row per note.
    pub notes: Vec<String>,
    /// Whether it is committed, or rolled back.
    pub commit: bool,
}

impl UlidWrite {
    /// Rows that are committed.
    pub fn committed<const N: usize>(notes: [&str; N]) -> Self {
        UlidWrite {
            notes: notes.map(str::to_owned).into(),
            commit: true,
        }
    }

    /// Rows that are rolled back.
    pub fn rolled_back<const N: usize>(notes: [&str; N]) -> Self {
        UlidWrite {
            commit: false,
            ..Self::committed(notes)
        }
    }
}

/// The statement that writes a row of `event`.
pub(crate) fn insert(shard: i32, ulid: Ulid, note: &str, blob: impl Fn(&str) -> String) -> String {
    let hex: String = ulid.to_bytes().iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "insert into event (shard, ulid, note) values ({shard}, {}, '{note}')",
        blob(&hex)
    )
}
