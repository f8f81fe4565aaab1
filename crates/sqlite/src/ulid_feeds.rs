//! Reading feeds that are ordered by ULIDs: the application's rows are the feed.

use async_trait::async_trait;
use changefeed_core::{
    After, Change, Content, Cursor, Error, Feed, Finding, Incarnation, Incident, Kind, Page,
    PageRoom, Result, ShardId, ShardState, Source, Ulid, UlidStore, Uuid, begin_ulid, ulid_of_row,
    words,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Explain;
use crate::source::Table;
use crate::{SqliteStore, quote, read, value};

/// Columns of a page before those of the row.
const FIXED: usize = 1;

/// The table of a ULID feed, and which of its columns matter.
pub(crate) struct Columns {
    table: String,
    pub(crate) shard: String,
    pub(crate) ulid: String,
}

impl Columns {
    /// Checks that a table can be read as a ULID feed, and says why not.
    pub(crate) fn find(table: &Table, shard: &str, ulid: &str) -> Result<Columns> {
        let (shard, ulid) = (table.column(shard)?, table.column(ulid)?);
        // Without a type a column keeps whatever is put into it; the expressions of a view have
        // none.
        let declared = table.declared_type(shard);
        if !(declared.contains("INT") || declared.is_empty() || declared == "ANY") {
            return Err(words::shard_not_integer(&table.name, shard));
        }
        let declared = table.declared_type(ulid);
        let other = ["INT", "CHAR", "CLOB", "TEXT", "REAL", "FLOA", "DOUB"];
        if other.iter().any(|name| declared.contains(name)) {
            return Err(words::not_a_ulid(
                &table.name,
                ulid,
                &declared.to_ascii_lowercase(),
                "blob",
            ));
        }
        Ok(Columns {
            table: table.sql(),
            shard: shard.to_owned(),
            ulid: ulid.to_owned(),
        })
    }

    /// Those of a feed, if it is ordered by ULIDs.
    pub(crate) fn of(tx: &Connection, feed: &Feed) -> Result<Option<Columns>> {
        let Some(
            source @ Source::Ulid {
                shard_column,
                ulid_column,
                ..
            },
        ) = &feed.source
        else {
            return Ok(None);
        };
        let table = Table::behind(tx, feed, source)?;
        Columns::find(&table, shard_column, ulid_column).map(Some)
    }

    fn fill(&self, template: &str) -> Result<String> {
        quote::fill(
            template,
            &[
                ("table", &self.table),
                ("shard", &quote::identifier(&self.shard)),
                ("ulid", &quote::identifier(&self.ulid)),
            ],
        )
    }

    /// Reads a page; the transaction makes it one moment of the database.
    pub(crate) fn page(
        &self,
        tx: &Connection,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
        incarnation: Incarnation,
    ) -> Result<Page> {
        let Some(from) = begin_ulid(feed, after)? else {
            let newest = self.newest(tx, feed, shard)?;
            return Ok(Page::empty(Cursor::Ulid(newest), incarnation));
        };
        let sql = self.fill(include_str!("sql/ulid_page.sql"))?;
        let mut statement = tx.prepare_cached(&sql).explained()?;
        // One more, to know whether there is one.
        let count = i64::try_from(limit).map_or(i64::MAX, |limit| limit.saturating_add(1));
        let mut rows = statement
            .query(params![shard.0, from.to_bytes(), count])
            .explained()?;
        let mut changes = Vec::with_capacity(limit.min(1000));
        let mut names: Option<Vec<String>> = None;
        let mut room = PageRoom::default();
        let mut more = false;
        while let Some(row) = rows.next().explained()? {
            let names = names.get_or_insert_with(|| read::column_names(row, FIXED));
            let bytes = row.get_ref(0).and_then(|v| Ok(v.as_blob()?)).explained()?;
            let cursor = Cursor::Ulid(ulid_of_row(feed, bytes)?);
            let content = Content::Row(value::to_json(row, names, FIXED)?);
            let change = Change::published(cursor, None, content);
            if changes.len() == limit || !room.takes(&change) {
                more = true;
                break;
            }
            changes.push(change);
        }
        if changes.is_empty() {
            self.check_kind(tx, shard)?;
        }
        let next = changes
            .last()
            .map_or(Cursor::Ulid(from), |change| change.cursor);
        Ok(Page {
            changes,
            next,
            more,
            incarnation,
            closed: false,
        })
    }

    /// Complains about ULIDs that were not stored as blobs, before a reader waits for them for
    /// ever.
    fn check_kind(&self, tx: &Connection, shard: ShardId) -> Result<()> {
        let foreign: Option<String> = tx
            .prepare_cached(&self.fill(include_str!("sql/ulid_foreign.sql"))?)
            .and_then(|mut s| s.query_row([shard.0], |row| row.get(0)).optional())
            .explained()?;
        match foreign {
            None => Ok(()),
            Some(kind) => Err(Error::invalid(format!(
                "column '{}' of {} holds a ULID as {kind}; nobody would ever read it",
                self.ulid, self.table
            ))
            .advise("store the 16 bytes of a ULID as a blob")),
        }
    }

    /// The newest ULID that is committed in a shard.
    fn newest(&self, tx: &Connection, feed: &Feed, shard: ShardId) -> Result<Ulid> {
        let found: Option<Vec<u8>> = tx
            .prepare_cached(&self.fill(include_str!("sql/ulid_newest.sql"))?)
            .and_then(|mut s| s.query_row([shard.0], |row| row.get(0)).optional())
            .explained()?;
        found.map_or(Ok(Ulid::MIN), |bytes| ulid_of_row(feed, &bytes))
    }

    /// Puts what the rows tell into the state of a shard.
    pub(crate) fn state(&self, tx: &Connection, feed: &Feed, state: &mut ShardState) -> Result<()> {
        let newest = self.newest(tx, feed, state.shard)?;
        state.last = Cursor::Ulid(newest);
        // Without any, what is there already is the age of the shard.
        if newest != Ulid::MIN {
            let now: i64 = tx
                .prepare_cached(
                    "select cast((julianday('now') - 2440587.5) * 86400000.0 as integer)",
                )
                .and_then(|mut s| s.query_row([], |row| row.get(0)))
                .explained()?;
            state.since_ms = now.saturating_sub_unsigned(newest.time()).max(0);
        }
        Ok(())
    }
}

#[async_trait]
impl UlidStore for SqliteStore {
    /// None, ever: the operating system frees the lock of a process that dies.
    async fn incidents(&self) -> Result<Vec<Incident>> {
        self.reading(|tx| {
            let mut statement = tx
                .prepare_cached(
                    "select feed_id, shard_id, count, \
                     max(0, coalesce(cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
                                     - reported_at, 0)) \
                     from changefeed_incident where count > 0 order by feed_id, shard_id",
                )
                .explained()?;
            let mut rows = statement.query([]).explained()?;
            let mut incidents = Vec::new();
            while let Some(row) = rows.next().explained()? {
                incidents.push(Incident {
                    feed: feed_of(row)?,
                    shard: row.get(1).explained()?,
                    count: row.get(2).explained()?,
                    since_ms: row.get(3).explained()?,
                });
            }
            Ok(incidents)
        })
        .await
    }
}

/// The feed of ULID transactions in the first column.
fn feed_of(row: &Row<'_>) -> Result<Uuid> {
    let feed: String = row.get(0).explained()?;
    Uuid::parse_str(&feed).map_err(|error| {
        Error::new(Kind::Database, format!("'{feed}' is not a UUID")).caused_by(error)
    })
}

/// Shards whose ULIDs are in the future.
pub(crate) fn findings(tx: &Connection) -> Result<Vec<Finding>> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/ulids_ahead.sql"))
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    let mut findings = Vec::new();
    while let Some(row) = rows.next().explained()? {
        let (shard, ahead) = (row.get(1).explained()?, row.get(2).explained()?);
        findings.push(Finding::of_ulids_ahead(feed_of(row)?, shard, ahead));
    }
    Ok(findings)
}
