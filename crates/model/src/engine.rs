//! A small SQL Server: rows with a committed and an uncommitted version, locks, transactions, snapshots.
//!
//! Each rule is told in `ENGINE.md` together with the documentation that it comes from. What a call cannot
//! do yet, because it would wait, it answers with [`Stop::Blocked`] and leaves everything as it was: the
//! checker tries it again in every later state.

use std::collections::{BTreeMap, BTreeSet};

/// A session, by the number of its process.
pub type Session = u8;
/// A table or an index of one, by a number that the protocol gives it.
pub type Table = u8;
/// The columns of a row; what they mean is the protocol's.
pub type Row = [i8; 8];
/// A row of a table, there or not: what is locked.
pub type Place = (Table, i8);

/// Application locks are places in a table of their own.
pub const APPLICATION_LOCK: Table = 255;
/// A page of an index: `(PAGE + table, page)`.
pub const PAGE: Table = 128;

/// How the database is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    /// READ_COMMITTED_SNAPSHOT: a statement reads what was committed when it began.
    pub versioned: bool,
    /// Optimized locking: an update looks for its rows without a lock, and keeps none on a row that it
    /// leaves as it was.
    pub optimized: bool,
    /// ALLOW_SNAPSHOT_ISOLATION, for who asks for it only where rows are not versioned anyway.
    pub snapshots: bool,
}

impl Rules {
    /// Statements read the last committed rows; an update locks every row that it looks at.
    pub const VERSIONED: Rules = Rules {
        versioned: true,
        optimized: false,
        snapshots: false,
    };
    /// Versions and optimized locking, as in Azure SQL Database.
    pub const OPTIMIZED: Rules = Rules {
        versioned: true,
        optimized: true,
        snapshots: false,
    };
    /// Readers wait for writers: the default of a database on one's own server.
    pub const LOCKING: Rules = Rules {
        versioned: false,
        optimized: false,
        snapshots: false,
    };
    /// The same, but snapshots are allowed. It matters only to a protocol that asks whether they are.
    pub const SNAPSHOTS: Rules = Rules {
        snapshots: true,
        ..Rules::LOCKING
    };
    /// Every way a database can be set up.
    pub const ALL: [Rules; 3] = [Rules::VERSIONED, Rules::OPTIMIZED, Rules::LOCKING];
}

/// Why a statement did not do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Another session has a lock; the statement waits.
    Blocked(Session),
    /// 2627: a row with this key is there.
    Duplicate,
    /// 3960: the row was changed since the snapshot.
    Conflict,
}

/// What a statement gives back.
pub type Done<T> = Result<T, Stop>;

/// S, U and X; intent locks never conflict with each other, and nothing here locks a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Shared.
    Shared,
    /// Update: one at a time, beside shared ones.
    Update,
    /// Exclusive.
    Exclusive,
}

/// Who keeps a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// Until the transaction ends.
    Transaction,
    /// Until it is released or the session ends.
    Session,
}

/// How a row is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// As the isolation level and the database's setting say.
    Plain,
    /// READCOMMITTEDLOCK, READPAST: what is locked is passed by.
    Past,
    /// READCOMMITTEDLOCK: what is locked is waited for.
    Locking,
    /// READUNCOMMITTED.
    Dirty,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Versions {
    committed: Option<Row>,
    /// How often it was committed: what a snapshot compares.
    times: u8,
    /// What a transaction has written and not committed.
    written: Option<(Session, Option<Row>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Transaction {
    /// All that was committed when the transaction first read something, if it has a snapshot.
    snapshot: Option<BTreeMap<Place, (Row, u8)>>,
    /// What it had written at its savepoint.
    saved: Option<Vec<(Place, Option<Row>)>>,
}

/// The database.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Database {
    rows: BTreeMap<Place, Versions>,
    locks: BTreeSet<(Place, Session, Mode, Owner)>,
    open: BTreeMap<Session, Transaction>,
}

impl Database {
    /// With these committed rows.
    pub fn with(rows: impl IntoIterator<Item = (Place, Row)>) -> Self {
        let mut database = Database::default();
        for (place, row) in rows {
            let versions = Versions {
                committed: Some(row),
                ..Versions::default()
            };
            database.rows.insert(place, versions);
        }
        database
    }

    // Transactions ------------------------------------------------------------------------------

    /// BEGIN TRANSACTION.
    pub fn begin(&mut self, session: Session) {
        self.open.entry(session).or_default();
    }

    /// Whether the session is in a transaction.
    pub fn is_open(&self, session: Session) -> bool {
        self.open.contains_key(&session)
    }

    /// Reads from here on, in this transaction, see what is committed now.
    pub fn take_snapshot(&mut self, session: Session) {
        let seen = || {
            self.rows
                .iter()
                .filter_map(|(place, v)| Some((*place, (v.committed?, v.times))))
                .collect()
        };
        let snapshot: BTreeMap<Place, (Row, u8)> = seen();
        if let Some(transaction) = self.open.get_mut(&session) {
            transaction.snapshot.get_or_insert(snapshot);
        }
    }

    /// The rows of a table that the snapshot of this transaction shows, if it has one.
    pub fn snapshot(&self, session: Session, table: Table) -> Option<Vec<(i8, Row)>> {
        let snapshot = self.open.get(&session)?.snapshot.as_ref()?;
        let rows = snapshot.range((table, i8::MIN)..=(table, i8::MAX));
        Some(rows.map(|((_, key), (row, _))| (*key, *row)).collect())
    }

    /// COMMIT: what was written is visible, and only then its locks are free.
    pub fn commit(&mut self, session: Session) {
        for versions in self.rows.values_mut() {
            if let Some((_, row)) = versions.written.take_if(|(by, _)| *by == session) {
                versions.committed = row;
                versions.times = versions.times.wrapping_add(1);
            }
        }
        self.end(session);
    }

    /// ROLLBACK.
    pub fn rollback(&mut self, session: Session) {
        for versions in self.rows.values_mut() {
            versions.written.take_if(|(by, _)| *by == session);
        }
        self.end(session);
    }

    fn end(&mut self, session: Session) {
        self.rows
            .retain(|_, v| v.committed.is_some() || v.written.is_some() || v.times > 0);
        self.locks
            .retain(|(_, by, _, owner)| *by != session || *owner != Owner::Transaction);
        self.open.remove(&session);
    }

    /// The server has noticed that a client is gone: its transaction is rolled back, and what its session
    /// held is free.
    pub fn lose(&mut self, session: Session) {
        self.rollback(session);
        self.locks.retain(|(_, by, _, _)| *by != session);
    }

    /// SAVE TRANSACTION.
    pub fn save(&mut self, session: Session) {
        let written = self
            .rows
            .iter()
            .filter_map(|(place, v)| match v.written {
                Some((by, row)) if by == session => Some((*place, row)),
                _ => None,
            })
            .collect();
        if let Some(transaction) = self.open.get_mut(&session) {
            transaction.saved = Some(written);
        }
    }

    /// ROLLBACK TRANSACTION to the savepoint. Locks stay.
    pub fn rollback_to_savepoint(&mut self, session: Session) {
        let Some(saved) = self.open.get(&session).and_then(|t| t.saved.clone()) else {
            return;
        };
        for versions in self.rows.values_mut() {
            versions.written.take_if(|(by, _)| *by == session);
        }
        for (place, row) in saved {
            self.rows.entry(place).or_default().written = Some((session, row));
        }
    }

    // Locks -------------------------------------------------------------------------------------

    /// Who keeps a session from a lock of this mode.
    fn conflict(&self, place: Place, session: Session, mode: Mode) -> Option<Session> {
        let from = (place, 0, Mode::Shared, Owner::Transaction);
        self.locks
            .range(from..)
            .take_while(|(at, ..)| *at == place)
            .find(|(_, by, theirs, _)| *by != session && !compatible(*theirs, mode))
            .map(|(_, by, ..)| *by)
    }

    /// Takes a lock, or says who has it.
    pub fn lock(&mut self, place: Place, session: Session, mode: Mode, owner: Owner) -> Done<()> {
        if let Some(by) = self.conflict(place, session, mode) {
            return Err(Stop::Blocked(by));
        }
        self.locks.insert((place, session, mode, owner));
        Ok(())
    }

    /// Whether a lock could be had at once.
    pub fn is_free(&self, place: Place, session: Session, mode: Mode) -> bool {
        self.conflict(place, session, mode).is_none()
    }

    /// Whether the session has a lock of this mode there.
    pub fn holds(&self, place: Place, session: Session, mode: Mode) -> bool {
        [Owner::Transaction, Owner::Session]
            .into_iter()
            .any(|owner| self.locks.contains(&(place, session, mode, owner)))
    }

    /// Gives up all locks of a session there.
    pub fn unlock(&mut self, place: Place, session: Session) {
        self.locks
            .retain(|(at, by, ..)| *at != place || *by != session);
    }

    // Reading -----------------------------------------------------------------------------------

    /// The committed rows of a table: for properties, and for reads of one moment.
    pub fn committed(&self, table: Table) -> impl Iterator<Item = (i8, Row)> + '_ {
        self.rows
            .range((table, i8::MIN)..=(table, i8::MAX))
            .filter_map(|((_, key), v)| Some((*key, v.committed?)))
    }

    /// The newest version of a row, committed or not.
    pub fn newest(&self, place: Place) -> Option<Row> {
        let versions = self.rows.get(&place)?;
        match versions.written {
            Some((_, row)) => row,
            None => versions.committed,
        }
    }

    /// The committed version of a row.
    pub fn settled(&self, place: Place) -> Option<Row> {
        self.rows.get(&place)?.committed
    }

    /// The keys that a scan meets, in their order: also those that are not committed.
    pub fn keys(&self, table: Table) -> Vec<i8> {
        self.rows
            .range((table, i8::MIN)..=(table, i8::MAX))
            .filter(|(_, v)| v.committed.is_some() || matches!(v.written, Some((_, Some(_)))))
            .map(|((_, key), _)| *key)
            .collect()
    }

    /// Reads one row. `Ok(None)` where there is none, and where a locked one is passed by.
    pub fn read(
        &self,
        rules: Rules,
        session: Session,
        place: Place,
        how: Read,
    ) -> Done<Option<Row>> {
        let Some(versions) = self.rows.get(&place) else {
            return Ok(None);
        };
        if let Some((by, row)) = versions.written
            && by == session
        {
            return Ok(row);
        }
        let snapshot = self.open.get(&session).and_then(|t| t.snapshot.as_ref());
        match how {
            Read::Dirty => Ok(self.newest(place)),
            Read::Plain if snapshot.is_some() => {
                Ok(snapshot.and_then(|s| s.get(&place)).map(|(row, _)| *row))
            }
            Read::Plain if rules.versioned => Ok(versions.committed),
            Read::Plain | Read::Locking | Read::Past => {
                match self.conflict(place, session, Mode::Shared) {
                    None => Ok(versions.committed),
                    Some(_) if how == Read::Past => Ok(None),
                    Some(by) => Err(Stop::Blocked(by)),
                }
            }
        }
    }

    /// Reads a row by a scan of its small table: without row versions that waits for every row of it.
    pub fn scan_for(&self, rules: Rules, session: Session, place: Place) -> Done<Option<Row>> {
        let snapshot = self.open.get(&session).and_then(|t| t.snapshot.as_ref());
        if !rules.versioned && snapshot.is_none() {
            for key in self.keys(place.0) {
                self.read(rules, session, (place.0, key), Read::Locking)?;
            }
        }
        self.read(rules, session, place, Read::Plain)
    }

    // Writing -----------------------------------------------------------------------------------

    /// Updates or deletes one row that is found by its key. `change` gets the newest committed version and
    /// says what becomes of it: `None`, and the row does not match; `Some(None)`, and it is deleted.
    /// Returns whether it did match.
    pub fn update(
        &mut self,
        rules: Rules,
        session: Session,
        place: Place,
        keep: Keep,
        change: impl Fn(Row) -> Option<Option<Row>>,
    ) -> Done<bool> {
        let mine = match self.rows.get(&place) {
            Some(v) => matches!(v.written, Some((by, _)) if by == session),
            None => return Ok(false),
        };
        // The search takes update locks, and waits for whoever has one. With optimized locking it takes
        // none unless told, but a row that matches is locked, and looked at again, before it is written.
        if let Some(by) = self.conflict(place, session, Mode::Update) {
            let look_first = rules.optimized && keep == Keep::Default;
            let matches = self.settled(place).is_some_and(|row| change(row).is_some());
            return match look_first && !matches {
                true => Ok(false),
                false => Err(Stop::Blocked(by)),
            };
        }
        let newest = if mine {
            self.newest(place)
        } else {
            self.settled(place)
        };
        let Some(before) = newest else {
            return Ok(false);
        };
        if let Some(by) = self.conflict(place, session, Mode::Exclusive) {
            return Err(Stop::Blocked(by));
        }
        let Some(after) = change(before) else {
            return Ok(false);
        };
        if !mine && self.changed_since_snapshot(session, place) {
            return Err(Stop::Conflict);
        }
        let unchanged = after == Some(before);
        if keep == Keep::Updlock {
            self.lock(place, session, Mode::Update, Owner::Transaction)?;
        }
        if !(unchanged && rules.optimized) {
            self.lock(place, session, Mode::Exclusive, Owner::Transaction)?;
        }
        if !unchanged {
            let versions = self.rows.entry(place).or_default();
            versions.written = Some((session, after));
        }
        Ok(true)
    }

    fn changed_since_snapshot(&self, session: Session, place: Place) -> bool {
        let Some(snapshot) = self.open.get(&session).and_then(|t| t.snapshot.as_ref()) else {
            return false;
        };
        let now = self.rows.get(&place).map(|v| v.times);
        snapshot.get(&place).map(|(_, times)| *times) != now
    }

    /// Inserts one row.
    pub fn insert(&mut self, session: Session, place: Place, row: Row) -> Done<()> {
        if let Some(by) = self.conflict(place, session, Mode::Exclusive) {
            return Err(Stop::Blocked(by));
        }
        if self.newest(place).is_some() {
            return Err(Stop::Duplicate);
        }
        self.lock(place, session, Mode::Exclusive, Owner::Transaction)?;
        self.rows.entry(place).or_default().written = Some((session, Some(row)));
        Ok(())
    }

    /// UPDLOCK in a read: the row's key is locked, whether it is there or not if HOLDLOCK says so too.
    pub fn lock_row(&mut self, session: Session, place: Place) -> Done<()> {
        self.lock(place, session, Mode::Update, Owner::Transaction)
    }
}

/// What an update says about its locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Default,
    /// UPDLOCK: an update lock until the transaction ends, whatever becomes of the row.
    Updlock,
}

fn compatible(held: Mode, wanted: Mode) -> bool {
    matches!(
        (held, wanted),
        (Mode::Shared, Mode::Shared | Mode::Update) | (Mode::Update, Mode::Shared)
    )
}
