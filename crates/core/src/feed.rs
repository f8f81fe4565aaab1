//! Feeds, their shards, and where the rows behind their changes are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Condition, Cursor, Error, FeedId, FeedName, Fold, Result, Retention, ShardId, SweepGroup,
    TableName, Uuid,
};

/// The default `last_change_sequence_number` of a new shard: the first change gets one more.
/// Everything below is free for data that is older than the feed.
pub const DEFAULT_START: i64 = 2_000_000_000_000_000;

/// The largest start: numbers must have room to grow, and fit 18 digits for a long time to come.
pub const MAX_START: i64 = 900_000_000_000_000_000;

/// The first value that the sequence `change_id` gives out.
pub const FIRST_CHANGE_ID: i64 = 1_000_000_000_000_000;

/// A feed as the database knows it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Feed {
    /// The application's constant for this feed.
    pub id: FeedId,
    /// Its name on the command line and in URLs.
    pub name: FeedName,
    /// Whatever a person wrote about it.
    pub comment: Option<String>,
    /// Its shards, in ascending order.
    pub shards: Vec<Shard>,
    /// Where the rows behind its changes are, if that is defined.
    pub source: Option<Source>,
    /// How long its changes are kept; for ever unless given.
    pub retention: Option<Retention>,
}

impl Feed {
    /// The shard with this number, or an error that names those there are.
    pub fn shard(&self, shard: ShardId) -> Result<&Shard> {
        self.shards
            .iter()
            .find(|s| s.shard == shard)
            .ok_or_else(|| {
                let known: Vec<String> = self.shards.iter().map(|s| s.shard.to_string()).collect();
                let advice = if known.is_empty() {
                    "the feed has no shards".to_owned()
                } else {
                    format!("its shards are {}", known.join(", "))
                };
                Error::not_found(format!("feed '{}' has no shard {shard}", self.name))
                    .advise(advice)
            })
    }

    /// The shards that changes are added to.
    pub fn open_shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(|s| !s.closed)
    }

    /// The shards in the order in which they are to be read: all of one generation to their ends, then those of the
    /// next.
    pub fn generations(&self) -> Vec<Vec<ShardId>> {
        let mut all: BTreeMap<i16, Vec<ShardId>> = BTreeMap::new();
        for shard in &self.shards {
            all.entry(shard.generation).or_default().push(shard.shard);
        }
        all.into_values().collect()
    }

    /// The shards of the generation before that have changes of the same rows as this one, in a captured feed. A value
    /// that is `a` modulo the one number of shards and `b` modulo the other exists only if `a` and `b` are the same
    /// modulo what divides both.
    pub fn parents(&self, shard: ShardId) -> Vec<ShardId> {
        let Ok(child) = self.shard(shard) else {
            return Vec::new();
        };
        let of = |generation| -> Vec<ShardId> {
            let all = self.shards.iter();
            let all = all.filter(|s| Some(s.generation) == generation);
            all.map(|s| s.shard).collect()
        };
        let before = of(child.generation.checked_sub(1));
        let siblings = of(Some(child.generation));
        let mut divisor = (before.len(), siblings.len());
        while divisor.1 > 0 {
            divisor = (divisor.1, divisor.0 % divisor.1);
        }
        let place = siblings.iter().position(|s| *s == shard).unwrap_or(0);
        let same = |at: usize| divisor.0 > 0 && at % divisor.0 == place % divisor.0;
        let parents = before.into_iter().enumerate();
        parents
            .filter(|(at, _)| same(*at))
            .map(|(_, s)| s)
            .collect()
    }

    /// Checks what can be checked of a new number of shards without a database.
    pub fn check_reshard(&self, shards: i16) -> Result<()> {
        let refuse = |message: String| {
            Err(Error::invalid(message).advise(
                "where the application chooses the shard, insert into the table `shard` and publish to the new ones",
            ))
        };
        match &self.source {
            Some(Source::Captured { .. }) => {}
            _ => {
                return refuse(format!(
                    "feed '{}' is not captured from a table, so its writers choose the shard of a change",
                    self.name
                ));
            }
        }
        if shards < 1 {
            return Err(Error::invalid(format!(
                "a feed needs at least one shard, not {shards}"
            )));
        }
        if shards > 1 && self.source.as_ref().and_then(Source::shard_by).is_none() {
            return Err(Error::invalid(format!(
                "feed '{}' has no column that decides the shard of a row",
                self.name
            ))
            .advise("create another feed with --shard-by COLUMN"));
        }
        Ok(())
    }

    /// The error for a shard that the database does not have: it never existed, or it was dropped after
    /// `self` was read.
    #[must_use]
    pub fn unknown_shard(&self, shard: ShardId) -> Error {
        match self.shard(shard) {
            Err(never) => never,
            Ok(_) => Error::not_found(format!("shard {shard} of feed '{}' was dropped", self.name))
                .advise("`changefeed feed list` shows the feeds there are"),
        }
    }
}

/// One shard of a feed.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shard {
    /// Its number.
    pub shard: ShardId,
    /// Which sweeper numbers its changes.
    pub sweep_group: SweepGroup,
    /// Whether waiting readers are woken.
    pub longpoll: bool,
    /// How often the number of shards had been changed when this one was made. Readers begin with the shards of a
    /// generation when they have read those of the one before to their ends.
    pub generation: i16,
    /// Whether nothing is added to it any more, because there are shards of a later generation.
    pub closed: bool,
}

impl Shard {
    /// A shard of a new feed.
    pub fn first(shard: i16, sweep_group: SweepGroup) -> Self {
        Shard {
            shard: ShardId(shard),
            sweep_group,
            longpoll: true,
            generation: 0,
            closed: false,
        }
    }
}

/// Where the rows behind a feed's changes are.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// Our trigger on the table publishes every insert, update and delete; `change_row` links a
    /// change to the primary key of its row.
    Captured {
        /// The table.
        table: TableName,
        /// The column that decides the shard; without one everything goes to shard 0.
        #[serde(default)]
        shard_by: Option<String>,
        /// Whether every change keeps the row before and after it; always if something is left out.
        #[serde(default)]
        images: bool,
        /// Which rows are in the feed: a [condition](crate::Condition) over the columns of one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        when: Option<String>,
        /// Which columns are in its images; all unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        columns: Option<Vec<String>>,
    },
    /// The application publishes its changes and keeps the `change_id` in a column of its table.
    Joined {
        /// The table.
        table: TableName,
        /// The column with the `change_id`.
        #[serde(default = "change_id")]
        change_id_column: String,
        /// The column that decides the shard of a backfilled row.
        #[serde(default)]
        shard_by: Option<String>,
    },
    /// The application writes its rows in ULID transactions; the rows are the feed.
    Ulid {
        /// The feed of those transactions.
        feed: Uuid,
        /// The table.
        table: TableName,
        /// The column with the shard.
        shard_column: String,
        /// The column with the ULID, 16 bytes.
        ulid_column: String,
    },
    /// Event triggers write to it; its changes are events of the log, with old and new row.
    Events,
}

fn change_id() -> String {
    "change_id".to_owned()
}

impl Source {
    /// A table whose changes are captured, all of them in shard 0 and without images.
    pub fn captured(table: TableName) -> Self {
        Source::Captured {
            table,
            shard_by: None,
            images: false,
            when: None,
            columns: None,
        }
    }

    /// The table, whichever way its rows are published; events may come from many.
    pub fn table(&self) -> Option<&TableName> {
        match self {
            Source::Captured { table, .. }
            | Source::Joined { table, .. }
            | Source::Ulid { table, .. } => Some(table),
            Source::Events => None,
        }
    }

    /// Whether every change keeps the row before and after it. What has become of a row that is in the feed only
    /// at times could not be told otherwise.
    pub fn keeps_images(&self) -> bool {
        matches!(self, Source::Captured { images: true, .. }) || self.is_filtered()
    }

    /// Whether rows or columns are left out.
    pub fn is_filtered(&self) -> bool {
        self.columns().is_some() || self.when().is_some()
    }

    /// The columns that are in the images of its changes, if not all.
    pub fn columns(&self) -> Option<&[String]> {
        match self {
            Source::Captured { columns, .. } => columns.as_deref(),
            _ => None,
        }
    }

    /// Which rows are in the feed, if not all, as it was written.
    pub fn when(&self) -> Option<&str> {
        match self {
            Source::Captured { when, .. } => when.as_deref(),
            _ => None,
        }
    }

    /// Which rows are in the feed, if not all.
    pub fn condition(&self, fold: Fold) -> Result<Option<Condition>> {
        let when = self.when();
        when.map(|text| Condition::parse_row(text, fold))
            .transpose()
    }

    /// Has changes of a table keep the row before and after from now on, or not. False if it has no table of
    /// ours to look at.
    pub fn keep_images(&mut self, keep: bool) -> bool {
        let Source::Captured { images, .. } = self else {
            return false;
        };
        *images = keep;
        true
    }

    /// The column that decides the shard.
    pub fn shard_by(&self) -> Option<&str> {
        match self {
            Source::Captured { shard_by, .. } | Source::Joined { shard_by, .. } => {
                shard_by.as_deref()
            }
            Source::Ulid { .. } | Source::Events => None,
        }
    }
}

impl Feed {
    /// Refuses to guess the shard of rows that the application has not published itself.
    pub fn require_shard_column(&self, shards: i16, shard_by: Option<&str>) -> Result<()> {
        if shards > 1 && shard_by.is_none() {
            return Err(Error::invalid(format!(
                "feed '{}' has {shards} shards and no column that decides the shard of a row",
                self.name
            ))
            .advise("create the feed with --shard-by COLUMN, or insert the old data by hand"));
        }
        Ok(())
    }

    /// Says that its table is gone.
    pub fn table_dropped(&self) -> Error {
        Error::not_found(format!("the table behind feed '{}' was dropped", self.name))
            .advise("`changefeed feed drop` removes the feed")
    }

    /// Says that the rows of its table are more than there are numbers for.
    pub fn no_room_for(&self, table: impl std::fmt::Display) -> Error {
        Error::invalid(format!(
            "the rows of {table} do not fit below the start of feed '{}'",
            self.name
        ))
        .advise("create the feed with a larger --start")
    }

    /// Has changes of its table keep the row before and after from now on, or not.
    pub fn keep_images(&mut self, keep: bool) -> Result<()> {
        if !keep && self.source.as_ref().is_some_and(Source::is_filtered) {
            return Err(Error::invalid(format!(
                "feed '{}' leaves out rows or columns, which it can only do with images",
                self.name
            )));
        }
        if !self.source.as_mut().is_some_and(|s| s.keep_images(keep)) {
            return Err(
                Error::invalid(format!("feed '{}' is not made from a table", self.name)).advise(
                    "images are kept of tables that a feed captures: `feed create … --from TABLE`",
                ),
            );
        }
        Ok(())
    }

    /// Says how long its changes are kept; without a retention for ever.
    pub fn keep_changes(&mut self, retention: Option<Retention>) -> Result<()> {
        self.require_numbers("trimmed")?;
        if let Some(retention) = &retention {
            retention.validate()?;
        }
        self.retention = retention;
        Ok(())
    }

    /// Refuses what makes sense only where changes have numbers.
    pub fn require_numbers(&self, what: &str) -> Result<()> {
        match &self.source {
            Some(Source::Ulid { table, .. }) => Err(Error::invalid(format!(
                "feed '{}' is ordered by ULIDs: its rows in {table} are all there is, so it cannot \
                 be {what}",
                self.name
            ))),
            _ => Ok(()),
        }
    }
}

/// A feed to be created.
#[derive(Debug, Clone)]
pub struct NewFeed {
    /// Its name.
    pub name: FeedName,
    /// Its number; the next free one if the application does not care.
    pub id: Option<FeedId>,
    /// Whatever a person wants to write about it.
    pub comment: Option<String>,
    /// How many shards, numbered from 0.
    pub shards: i16,
    /// The group whose sweeper numbers its changes.
    pub sweep_group: SweepGroup,
    /// The number before the first; [`DEFAULT_START`] unless there is a reason.
    pub start: i64,
    /// Where the rows are.
    pub source: Option<Source>,
    /// How long its changes are kept; for ever unless given.
    pub retention: Option<Retention>,
}

impl NewFeed {
    /// A feed with one shard and every default.
    pub fn new(name: FeedName) -> Self {
        NewFeed {
            name,
            id: None,
            comment: None,
            shards: 1,
            sweep_group: SweepGroup(0),
            start: DEFAULT_START,
            source: None,
            retention: None,
        }
    }

    /// A feed of the changes of a table, named after the table, with one shard and every default.
    pub fn captured(table: &str) -> Result<Self> {
        let table = TableName::parse(table, Fold::Keep)?;
        let name = table.name.parse()?;
        Ok(NewFeed {
            source: Some(Source::captured(table)),
            ..NewFeed::new(name)
        })
    }

    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        if self.shards < 1 {
            return Err(Error::invalid(format!(
                "a feed needs at least one shard, not {}",
                self.shards
            )));
        }
        if !(0..=MAX_START).contains(&self.start) {
            return Err(Error::invalid(format!(
                "a feed cannot start at {}: use 0 to {MAX_START}",
                self.start
            )));
        }
        if let Some(retention) = &self.retention {
            retention.validate()?;
            if matches!(self.source, Some(Source::Ulid { .. })) {
                return Err(Error::invalid(
                    "the rows of ULID transactions are the feed: it has nothing of its own that could be trimmed",
                )
                .advise("remove old rows from the table"));
            }
        }
        if let Some(source) = &self.source {
            source.condition(Fold::Keep)?;
            if source.columns().is_some_and(<[String]>::is_empty) {
                return Err(Error::invalid("a feed needs at least one column"));
            }
        }
        // An application that publishes its changes also chooses their shard.
        if let Some(Source::Captured { shard_by: None, .. }) = &self.source
            && self.shards > 1
        {
            return Err(Error::invalid(format!(
                "a feed with {} shards needs a column that decides the shard",
                self.shards
            ))
            .advise("add --shard-by COLUMN"));
        }
        Ok(())
    }
}

/// What is known about the traffic of a shard.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct ShardState {
    /// The shard.
    pub shard: ShardId,
    /// Its sweep group.
    pub sweep_group: SweepGroup,
    /// The newest number given, or the newest ULID written.
    pub last: Cursor,
    /// Changes that are committed and wait for their number. Counting stops at 100,000.
    pub pending: i64,
    /// Milliseconds since that number or ULID was given, or since the shard was created.
    pub since_ms: i64,
}

/// How far a backfill has come.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Backfill {
    /// Rows that got a number in this step.
    pub added: u64,
    /// Rows that got a number since the backfill began.
    pub done: u64,
    /// Rows in the table when the backfill began (an estimate where counting is expensive).
    pub total: u64,
    /// Whether nothing is left.
    pub finished: bool,
}

impl Backfill {
    /// From what a database counts.
    pub fn new(added: i64, done: i64, total: i64, finished: bool) -> Self {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Backfill {
            added: count(added),
            done: count(done),
            total: count(total),
            finished,
        }
    }
}

/// What was erased of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Erased {
    /// Changes of feeds whose images are empty now.
    pub changes: u64,
    /// Events whose rows are empty now, with the requests and answers of their attempts.
    pub events: u64,
    /// Events that are still to be delivered, and were left as they are.
    pub pending: u64,
}

/// The values of a row's key in the order of the key, from those that are given by name.
pub fn key_values(
    table: &TableName,
    key: &[&str],
    given: &[(String, String)],
) -> Result<Vec<String>> {
    let wrong = given.len() != key.len();
    let value = |column: &&str| given.iter().find(|(name, _)| name == column);
    let values: Option<Vec<String>> = key
        .iter()
        .map(|column| value(column).map(|(_, value)| value.clone()))
        .collect();
    values.filter(|_| !wrong).ok_or_else(|| {
        Error::invalid(format!(
            "the key of {table} has the columns {}",
            key.join(", ")
        ))
        .advise("give a value for each of them, and for nothing else")
    })
}

/// What a trim removed.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Default, Serialize)]
pub struct Trimmed {
    /// Changes removed.
    pub removed: u64,
    /// Consumers (with their shard) that have not read yet and kept changes from being removed.
    pub held_back_by: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardRange, ShardValue, shard_of};

    fn resharded(counts: &[i16]) -> Feed {
        let mut feed = Feed {
            id: FeedId(1),
            name: FeedName::trusted("f".to_owned()),
            comment: None,
            shards: Vec::new(),
            source: None,
            retention: None,
        };
        for (generation, count) in (0..).zip(counts) {
            let first = feed.shards.len().try_into().unwrap();
            let range = ShardRange::checked(&feed.name, first, *count).unwrap();
            for shard in range.numbers() {
                feed.shards.push(Shard {
                    generation,
                    ..Shard::first(shard, SweepGroup(0))
                });
            }
        }
        feed
    }

    #[test]
    fn parents_are_the_shards_that_a_row_can_come_from() {
        for (old, new) in [(1, 4), (4, 1), (2, 4), (4, 6), (6, 4), (3, 5), (5, 5)] {
            let feed = resharded(&[old, new]);
            for child in 0..new {
                let mut expected: Vec<i16> = (0..i64::from(old) * i64::from(new))
                    .filter(|v| shard_of(ShardValue::Integer(*v), new) == child)
                    .map(|v| shard_of(ShardValue::Integer(v), old))
                    .collect();
                expected.sort_unstable();
                expected.dedup();
                let parents: Vec<i16> = feed
                    .parents(ShardId(old + child))
                    .iter()
                    .map(|s| s.0)
                    .collect();
                assert_eq!(parents, expected, "{old} to {new}, {child}");
            }
            assert!(feed.parents(ShardId(0)).is_empty());
        }
    }

    #[test]
    fn shard_numbers_end() {
        let name = FeedName::trusted("f".to_owned());
        let range = |first, count| ShardRange::checked(&name, first, count);
        assert_eq!(range(32766, 2).unwrap().last(), i16::MAX);
        assert_eq!(range(-4, 2).unwrap().first, 0);
        assert!(range(32767, 2).is_err() && range(32768, 1).is_err());
        assert_eq!(resharded(&[4, 2, 8]).generations().len(), 3);
    }
}
