//! Watches: the changed rows of a table, net and in leased batches, for a function.
//!
//! A function is known by its name. What it has not been handed yet is its *backlog*: one entry
//! per changed key, in order of the newest change. A batch is leased to one instance at a time;
//! its outcome is stored in one statement.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::name::check_name;
use crate::row_change::{BatchFormat, RowChange, RowOperation};
use crate::{Error, Kind, Result, RowFilter, TableName, WatchDefinition};

/// A watch's name, which is the identity of its function: `[a-zA-Z0-9_-]+`, at most 100
/// characters.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct WatchName(String);

const TEMPORARY: &str = "adhoc-";

impl WatchName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Wraps a name that the database returned, without checking it.
    pub fn trusted(name: String) -> Self {
        WatchName(name)
    }

    /// A name for a function that is to leave nothing behind when it ends. Whoever starts later knows by the name
    /// that it may be removed when nobody has worked for it for a while: its process was killed.
    pub fn temporary(chance: u64) -> Self {
        WatchName(format!("{TEMPORARY}{chance:016x}"))
    }

    /// Whether it is such a name.
    pub fn is_temporary(&self) -> bool {
        let chance = self.0.strip_prefix(TEMPORARY).unwrap_or_default();
        chance.len() == 16
            && chance
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// The function's id, which is part of the names of its tables: the FNV-1a hash of its name,
    /// 64 bits, as 16 hexadecimal digits.
    pub fn function_id(&self) -> String {
        let hash = self
            .0
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        format!("{hash:016x}")
    }

    /// The error for a watch that does not exist.
    pub fn unknown(&self) -> Error {
        Error::not_found(format!("there is no watch '{self}'"))
            .advise("`changefeed watch list` shows the watches")
    }
}

impl fmt::Display for WatchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WatchName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        check_name("watch name", text, 100).map(WatchName)
    }
}

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchSettings {
    /// Rows in a batch at most.
    pub batch: usize,
    /// An instance that has found nothing more to do looks again after this, however soon there is something;
    /// zero for at once. Changes of a row that come in between are one.
    pub polling_interval: Duration,
    /// How long a failed batch waits for its next attempt; twice as long each time after that.
    pub retry_interval: Duration,
    /// How long a lease lasts without renewal.
    pub lease: Duration,
    /// How often it is renewed while the function runs.
    pub renewal: Duration,
    /// How often a change is tried before it is parked.
    pub attempts: u32,
}

impl Default for WatchSettings {
    fn default() -> Self {
        WatchSettings {
            batch: 100,
            polling_interval: Duration::ZERO,
            retry_interval: Duration::from_millis(1000),
            lease: Duration::from_secs(60),
            renewal: Duration::from_secs(15),
            attempts: 5,
        }
    }
}

/// The largest batch.
pub const MAX_WATCH_BATCH: usize = 10_000;

/// The default number of unprocessed changes per suggested worker.
pub const CHANGES_PER_WORKER: i64 = 1000;

impl WatchSettings {
    /// Refuses settings that cannot work.
    pub fn validate(&self) -> Result<()> {
        let (short, day) = (Duration::from_millis(10), Duration::from_secs(86_400));
        if self.batch == 0 || self.batch > MAX_WATCH_BATCH {
            return Err(Error::invalid(format!(
                "a batch of {} rows is not possible: use 1 to {MAX_WATCH_BATCH}",
                self.batch
            )));
        }
        if self.attempts == 0 || self.attempts > 1000 {
            return Err(Error::invalid(format!(
                "{} attempts are not possible: use 1 to 1000",
                self.attempts
            )));
        }
        for (what, time) in [
            ("retry interval", self.retry_interval),
            ("lease", self.lease),
            ("renewal", self.renewal),
        ] {
            if time < short || time > day {
                return Err(Error::invalid(format!(
                    "a {what} of {} is not possible: use 10ms to 1d",
                    humantime::format_duration(time)
                )));
            }
        }
        if self.polling_interval > day {
            return Err(Error::invalid(format!(
                "a polling interval of {} is not possible: use 0s to 1d",
                humantime::format_duration(self.polling_interval)
            )));
        }
        if self.renewal * 2 > self.lease {
            return Err(Error::invalid(format!(
                "a lease of {} cannot be renewed in time every {}",
                humantime::format_duration(self.lease),
                humantime::format_duration(self.renewal)
            ))
            .advise("renew at least twice per lease"));
        }
        Ok(())
    }

    /// How many rows are tried together in the n-th attempt, counted from 1. The groups shrink
    /// from a whole batch to single rows, so that one bad row is alone in its last attempt and
    /// takes no other with it.
    pub fn group(&self, attempt: u32) -> usize {
        if attempt <= 1 || self.attempts <= 1 {
            return self.batch;
        }
        let left = f64::from(self.attempts.saturating_sub(attempt));
        let share = left / f64::from(self.attempts - 1);
        // The rounding only decides whether a group has a row more.
        let group = (self.batch as f64).powf(share).ceil() as usize;
        group.clamp(1, self.batch)
    }

    /// How long rows wait after their n-th attempt has failed.
    pub fn wait_after(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(6);
        self.retry_interval * 2_u32.pow(doublings)
    }
}

/// Where a new function begins.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchFrom {
    /// With the changes from now on.
    #[default]
    Now,
    /// With every row that is there already, as an insert.
    Beginning,
}

impl FromStr for WatchFrom {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "now" => Ok(WatchFrom::Now),
            "beginning" => Ok(WatchFrom::Beginning),
            _ => Err(Error::invalid(format!(
                "'{text}' is no place to begin: use 'now' or 'beginning'"
            ))),
        }
    }
}

/// A function and the table it wants to watch.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchSpec {
    /// The function's name.
    pub name: WatchName,
    /// The table.
    pub table: TableName,
    /// Where it begins if it is new.
    pub from: WatchFrom,
    /// Whether it must exist: a watch that was dropped meanwhile is not created again.
    pub existing: bool,
    /// What `serve` does with it; nothing for a function that runs elsewhere.
    pub definition: Option<WatchDefinition>,
    /// Whether that may take the place of another definition.
    pub replace: bool,
    /// What is handed over. Its columns have to be those of the table.
    pub filter: RowFilter,
    /// Whether it wants to know which columns were changed. Writers pay for that, so it is only
    /// noted from when the first function of the table asks.
    pub columns: bool,
    /// Whether it is told what rows were before they were changed; the same holds for that.
    pub before: bool,
    /// Unprocessed changes per worker; `None` keeps the current value.
    pub max_changes_per_worker: Option<u32>,
}

impl WatchSpec {
    /// A function that begins now and runs elsewhere.
    pub fn new(name: WatchName, table: TableName) -> Self {
        WatchSpec {
            name,
            table,
            from: WatchFrom::Now,
            existing: false,
            definition: None,
            replace: false,
            filter: RowFilter::default(),
            columns: false,
            before: false,
            max_changes_per_worker: None,
        }
    }

    /// A function that begins now and is run by `serve`.
    pub fn served(name: WatchName, table: TableName, definition: WatchDefinition) -> Self {
        WatchSpec {
            definition: Some(definition.clone()),
            ..WatchSpec::by(name, table, &definition)
        }
    }

    /// A function that begins now and wants what a definition says, wherever it runs.
    pub fn by(name: WatchName, table: TableName, definition: &WatchDefinition) -> Self {
        WatchSpec {
            max_changes_per_worker: definition.max_changes_per_worker,
            ..WatchSpec::new(name, table).wanting(&definition.filter, definition.format())
        }
    }

    /// The same with what has to be noted for a filter and a format.
    #[must_use]
    pub fn wanting(self, filter: &RowFilter, format: BatchFormat) -> Self {
        WatchSpec {
            columns: format.columns || filter.needs_columns(),
            before: format.before,
            filter: filter.clone(),
            ..self
        }
    }

    /// Whether rows have to be noted as they were before they were changed.
    pub fn notes_before(&self) -> bool {
        self.before || self.filter.needs_before()
    }

    /// The error for a watch that already has another definition.
    pub fn defined_already(&self) -> Error {
        Error::new(
            crate::Kind::AlreadyExists,
            format!("watch '{}' has another definition already", self.name),
        )
        .advise("`changefeed watch show` shows it; --replace puts this one in its place")
    }
}

/// A function that watches a table.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Watch {
    /// The function's name.
    pub name: WatchName,
    /// 16 hexadecimal digits, from the name.
    pub function_id: String,
    /// The database's number of the table.
    #[serde(serialize_with = "crate::position::serialize")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub table_id: i64,
    /// The table, as it is called now.
    pub table: TableName,
    /// The table with the function's backlog and leases.
    pub leases_table: String,
    /// What `serve` does with it; nothing if a program that uses the library runs it.
    #[serde(flatten)]
    pub definition: Option<WatchDefinition>,
}

/// Who asks for a batch, and on which terms.
#[derive(Debug, Clone, Copy)]
pub struct Take<'a> {
    /// The instance; unique to it.
    pub owner: &'a str,
    /// Batch, lease and attempts.
    pub settings: &'a WatchSettings,
}

/// Rows that are leased to one instance.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Which lease: no other batch has this number.
    pub generation: i64,
    /// The lowest and the highest version among its changes, at the time of leasing.
    pub versions: (i64, i64),
    /// Which attempt this is for its rows, counted from 1.
    pub attempt: u32,
    /// The changes, oldest first.
    pub changes: Vec<RowChange>,
    /// The columns of the table's primary key; none before its rows were read.
    pub key: Vec<String>,
    /// Which of its rows are meant, where its outcome is stored.
    pub part: Part,
    /// Before the lease was asked for.
    pub asked: Instant,
}

/// Rows of a batch, by their versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    #[default]
    Whole,
    /// These, of which there is at least one.
    Only(Vec<i64>),
    /// All but these, of which there is at least one.
    Without(Vec<i64>),
}

impl Batch {
    /// Stores the changes that were read of `leased` rows. If not all could be read at once, returns the
    /// rest as a batch to give back.
    pub fn fill(&mut self, changes: Vec<RowChange>, leased: usize) -> Option<Batch> {
        self.changes = changes;
        let last = self.changes.last()?.version;
        if self.changes.len() >= leased {
            return None;
        }
        let beyond = (last + 1, self.versions.1);
        let rest = Batch::leased(self.generation, beyond, self.attempt, self.asked);
        self.versions.1 = last;
        Some(rest)
    }

    /// Some of its rows, to store their outcome.
    #[must_use]
    pub fn part(&self, part: Part) -> Batch {
        Batch {
            part,
            changes: Vec::new(),
            key: Vec::new(),
            ..*self
        }
    }

    /// The condition that a version is one of those that are meant, as SQL; nothing if all are. `among` makes that of a
    /// list of numbers between commas.
    pub fn meant(&self, version: &str, among: impl FnOnce(&str) -> String) -> String {
        let (not, versions) = match &self.part {
            Part::Whole => return String::new(),
            Part::Only(versions) => ("", versions),
            Part::Without(versions) => ("not ", versions),
        };
        let list: Vec<String> = versions.iter().map(i64::to_string).collect();
        format!(" and {not}({version} {})", among(&list.join(",")))
    }

    /// A batch as a call leases it: none of its rows were read yet.
    pub fn leased(generation: i64, versions: (i64, i64), attempt: u32, asked: Instant) -> Batch {
        Batch {
            generation,
            versions,
            attempt,
            changes: Vec::new(),
            key: Vec::new(),
            part: Part::Whole,
            asked,
        }
    }
}

/// What became of a batch.
#[derive(Debug, Clone)]
pub enum BatchOutcome {
    /// The function has succeeded.
    Done,
    /// The function has failed with this error. The rows wait for their next attempt; those that
    /// have used up theirs are parked.
    Failed {
        /// What went wrong.
        error: String,
    },
    /// The function was not called, or was stopped by us: as if the batch had not been taken.
    Released,
}

impl BatchOutcome {
    /// The outcome of a batch whose rows cannot be read. If a row is at fault, that was an attempt, and the
    /// next ones have fewer rows. Otherwise the batch is given back before its lease ends.
    pub fn unread(error: &Error) -> Self {
        match error.kind() {
            Kind::Database => BatchOutcome::Failed {
                error: format!("a row cannot be read: {error}"),
            },
            _ => BatchOutcome::Released,
        }
    }
}

/// What settling a batch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// Rows whose lease was still ours.
    pub rows: u64,
    /// Rows that were parked.
    pub parked: u64,
}

/// A watch and how it is doing.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct WatchStatus {
    /// The watch.
    #[serde(flatten)]
    pub watch: Watch,
    /// Changed rows that were not processed yet, those in process included.
    pub unprocessed: i64,
    /// Those of them that an instance holds.
    pub leased: i64,
    /// Changed rows that were given up.
    pub parked: i64,
    /// The last error of a row that waits or is parked.
    pub last_error: Option<String>,
    /// Every change up to this version is processed.
    #[serde(serialize_with = "crate::position::serialize")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub last_sync_version: i64,
    /// Milliseconds since an instance last looked; nothing if none ever has.
    pub idle_ms: Option<i64>,
    /// How many workers this backlog needs.
    pub suggested_workers: i64,
    /// Changes that were given up, oldest first, as many as were asked for.
    pub parked_changes: Vec<Parked>,
}

/// `ceil(unprocessed / changes_per_worker)`.
pub fn suggested_workers(unprocessed: i64, changes_per_worker: i64) -> i64 {
    let per_worker = changes_per_worker.max(1);
    unprocessed.max(0).saturating_add(per_worker - 1) / per_worker
}

/// A change that was given up.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Parked {
    /// The row's key.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub key: Box<RawValue>,
    /// `insert`, `update` or `delete`.
    #[serde(serialize_with = "crate::position::serialize")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: RowOperation,
    /// Its version.
    #[serde(serialize_with = "crate::position::serialize")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub version: i64,
    /// How often it was tried.
    pub attempts: i64,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// Milliseconds since it was parked.
    pub since_ms: i64,
}

/// Which parked changes of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkedRows {
    /// All of them.
    All,
    /// The one that shows this version; none once its row has changed again.
    Version(i64),
}

impl ParkedRows {
    /// The version, if one is meant.
    pub fn version(self) -> Option<i64> {
        match self {
            ParkedRows::All => None,
            ParkedRows::Version(version) => Some(version),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_function_id_is_pinned() {
        // A change here makes every function start over.
        let id = |name: &str| name.parse::<WatchName>().unwrap().function_id();
        assert_eq!(id("a"), "af63dc4c8601ec8c");
        assert_eq!(id("mail"), "1f5964a2ce98072e");
        assert_ne!(id("mail"), id("Mail"));
    }

    #[test]
    fn temporary_names_are_known() {
        assert!(WatchName::temporary(7).is_temporary());
        for lasting in ["adhoc-", "adhoc-report", "adhoc-00000000000000G7", "mail"] {
            assert!(!lasting.parse::<WatchName>().unwrap().is_temporary());
        }
    }

    #[test]
    fn what_was_too_much_at_once_is_a_batch_to_be_given_back() {
        let change = |version| RowChange {
            operation: RowOperation::Insert,
            item: RawValue::from_string("{}".to_owned()).unwrap(),
            version,
            bits: 0,
            columns: None,
            before: None,
            images: None,
        };
        let leased = Batch::leased(7, (10, 40), 2, Instant::now());
        let mut batch = leased.clone();
        let rest = batch.fill(vec![change(10), change(20)], 4).unwrap();
        assert_eq!(batch.versions, (10, 20));
        assert_eq!((rest.generation, rest.attempt), (7, 2));
        assert_eq!((rest.versions, rest.changes.len()), ((21, 40), 0));
        let mut batch = leased.clone();
        assert!(batch.fill(vec![change(10), change(40)], 2).is_none());
        assert_eq!(batch.versions, (10, 40));
        // Rows that were settled by somebody else meanwhile are nothing to give back.
        assert!(leased.clone().fill(Vec::new(), 2).is_none());
    }

    #[test]
    fn groups_shrink_from_a_batch_to_single_rows() {
        let settings = WatchSettings::default();
        let groups: Vec<usize> = (1..=6).map(|n| settings.group(n)).collect();
        assert_eq!(groups, [100, 32, 10, 4, 1, 1]);
        let waits: Vec<u64> = (1..=4).map(|n| settings.wait_after(n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8]);
    }

    #[test]
    fn workers_are_suggested_by_the_thousand() {
        let suggest = |n| suggested_workers(n, CHANGES_PER_WORKER);
        assert_eq!([0, 1, 1000, 1001].map(suggest), [0, 1, 1, 2]);
        assert_eq!(suggested_workers(i64::MAX, 0), i64::MAX);
    }

    proptest! {
        #[test]
        fn the_last_attempt_is_alone_and_no_group_is_empty(
            batch in 1usize..=MAX_WATCH_BATCH, attempts in 2u32..50
        ) {
            let settings = WatchSettings { batch, attempts, ..WatchSettings::default() };
            let mut before = batch;
            for attempt in 1..=attempts {
                let group = settings.group(attempt);
                prop_assert!(group >= 1 && group <= before);
                before = group;
            }
            prop_assert_eq!(before, 1);
        }
    }
}
