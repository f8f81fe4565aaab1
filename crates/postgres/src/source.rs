//! The table behind a feed, as the catalogue describes it now.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use changefeed_core::{Error, Feed, FeedId, Result, ShardRange, TableName, words};
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;
use crate::{names, quote};

/// A column of a table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The type beneath, if it is a domain; the same otherwise.
    pub(crate) base_type: String,
    type_oid: u32,
    /// Its number in the table, which stays when it is renamed.
    pub(crate) place: i16,
}

impl Column {
    /// The column of a row as text. A cast of somebody's own type may be somebody's own function,
    /// and triggers run with our rights; `format` uses the type's output function, also where the
    /// column has got another type meanwhile.
    fn text(&self, alias: &str) -> String {
        format!(
            "pg_catalog.format('%s', {alias}.{})",
            quote::identifier(&self.name)
        )
    }

    /// What has to be set before a value is written as JSON, so that the writer's session does not show: nothing, one
    /// setting, or none known, which is everything. By the number of the type, because anybody can
    /// give a type the name of another.
    pub(crate) fn json_setting(&self) -> Option<&'static str> {
        match Type::from_oid(self.type_oid)? {
            // Times of day and dates have one form in JSON, whatever the date style.
            Type::DATE | Type::TIME | Type::TIMESTAMP => Some(""),
            Type::TIMESTAMPTZ => Some("set timezone = 'UTC'"),
            Type::JSON | Type::JSONB => Some(""),
            Type::TEXT_ARRAY | Type::VARCHAR_ARRAY | Type::INT2_ARRAY => Some(""),
            Type::INT4_ARRAY | Type::INT8_ARRAY | Type::UUID_ARRAY => Some(""),
            _ => self.text_setting(),
        }
    }

    /// The same of a value that is written as text.
    pub(crate) fn text_setting(&self) -> Option<&'static str> {
        match Type::from_oid(self.type_oid)? {
            Type::INT2 | Type::INT4 | Type::INT8 | Type::NUMERIC | Type::BOOL | Type::OID => {
                Some("")
            }
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::CHAR => Some(""),
            Type::UUID | Type::INET | Type::CIDR | Type::MACADDR => Some(""),
            Type::BYTEA => Some("set bytea_output = hex"),
            Type::FLOAT4 | Type::FLOAT8 => Some("set extra_float_digits = 1"),
            Type::INTERVAL => Some("set intervalstyle = postgres"),
            _ => None,
        }
    }

    /// Whether the column of a row still has its type.
    pub(crate) fn is_known(&self, alias: &str) -> String {
        format!(
            "pg_catalog.pg_typeof({alias}.{})::pg_catalog.oid operator(pg_catalog.=) \
             {}::pg_catalog.oid",
            quote::identifier(&self.name),
            self.type_oid
        )
    }
}

/// A table as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) oid: u32,
    /// Schema and name, quoted.
    pub(crate) sql: String,
    pub(crate) name: TableName,
    /// `r` table, `p` partitioned table, `v` view, …
    pub(crate) relkind: String,
    /// Whether its primary key is checked at the end of a statement or transaction only.
    pub(crate) deferrable: bool,
    pub(crate) key: Vec<Column>,
    pub(crate) columns: Vec<Column>,
}

impl Table {
    /// Looks a table up by name, through the search path if no schema is given.
    pub(crate) async fn find(client: &impl GenericClient, name: &TableName) -> Result<Table> {
        match names::find(client, name).await? {
            Some(oid) => Table::load(client, oid).await?.ok_or_else(|| missing(name)),
            None => Err(missing(name)),
        }
    }

    /// The table for a query, without what inherits from it, which is not captured either. Partitions are.
    pub(crate) fn alone(&self) -> String {
        match self.relkind.as_str() {
            "p" => self.sql.clone(),
            _ => format!("only {}", self.sql),
        }
    }

    /// Keeps the table until the end of the transaction, if it may be read, and returns its row type: a
    /// statement that asks for rows of that type reads this table and no other that has its name.
    pub(crate) async fn hold(&self, client: &impl GenericClient) -> Result<Type> {
        let row = client
            .query_one(
                "select c.reltype, changefeed.hold_source(c.oid, c.reltype) \
                 from pg_catalog.pg_class c where c.oid = $1",
                &[&self.oid],
            )
            .await
            .map_err(db)?;
        Ok(row_type(row.take(0)?))
    }

    /// Reads the catalogue; `None` if there is no such table any more.
    pub(crate) async fn load(client: &impl GenericClient, oid: u32) -> Result<Option<Table>> {
        let Some(row) = client
            .query_opt(include_str!("sql/table.sql"), &[&oid])
            .await
            .map_err(db)?
        else {
            return Ok(None);
        };
        let name = TableName::qualified(row.take::<String>(0)?, row.take::<String>(1)?);
        let columns = client
            .query(include_str!("sql/columns.sql"), &[&oid])
            .await
            .map_err(db)?;
        let column = |row: &Row| {
            Ok(Column {
                name: row.take(0)?,
                base_type: row.take(2)?,
                type_oid: row.take(3)?,
                place: row.take(4)?,
            })
        };
        let mut key: Vec<(i32, Column)> = Vec::new();
        for row in &columns {
            if let Some(place) = row.take(1)? {
                key.push((place, column(row)?));
            }
        }
        key.sort_by_key(|(place, _)| *place);
        Ok(Some(Table {
            oid,
            sql: quote::table(&name),
            name,
            relkind: row.take(2)?,
            deferrable: row.take(3)?,
            key: key.into_iter().map(|(_, column)| column).collect(),
            columns: columns.iter().map(column).collect::<Result<_>>()?,
        }))
    }

    /// A column, or an error that names the columns there are.
    pub(crate) fn column(&self, name: &str) -> Result<&Column> {
        self.columns.iter().find(|c| c.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
            words::no_column(&self.name, name, &known)
        })
    }

    /// The key of a row as a JSON array of texts.
    pub(crate) fn key_array(&self, alias: &str) -> String {
        key_array(&self.key, alias)
    }

    /// The shard of a row, as an expression.
    pub(crate) fn shard_expression(
        &self,
        alias: &str,
        column: Option<&str>,
        shards: ShardRange,
    ) -> Result<String> {
        let ShardRange { first, count } = shards;
        let Some(column) = column else {
            return Ok(format!("{first}::pg_catalog.int2"));
        };
        let column = self.column(column)?;
        let value = match column.base_type.as_str() {
            "smallint" | "integer" | "bigint" => {
                format!(
                    "{alias}.{}::pg_catalog.int8",
                    quote::identifier(&column.name)
                )
            }
            _ => column.text(alias),
        };
        Ok(format!(
            "(changefeed.shard_of({value}, {count}) operator(pg_catalog.+) {first}::pg_catalog.int2)"
        ))
    }
}

/// Columns of a row as a JSON array of texts.
pub(crate) fn key_array(columns: &[Column], alias: &str) -> String {
    let parts: Vec<String> = columns.iter().map(|c| c.text(alias)).collect();
    format!("pg_catalog.jsonb_build_array({})", parts.join(", "))
}

fn missing(name: &TableName) -> Error {
    words::no_table(name)
        .advise("write it as in SQL, with its schema if it is not in the search path")
}

/// What the database remembers about a feed's source.
pub(crate) struct StoredSource {
    pub(crate) captured: bool,
    pub(crate) oid: u32,
    pub(crate) change_id_column: Option<String>,
    pub(crate) shard_by: Option<String>,
    pub(crate) shards: ShardRange,
    pub(crate) images: bool,
}

impl StoredSource {
    pub(crate) async fn load(client: &impl GenericClient, feed: FeedId) -> Result<Option<Self>> {
        let row = client
            .query_opt(
                "select kind = 'captured', source::oid, change_id_column, shard_by, first_shard, shards, images \
                 from changefeed.feed_source where feed_id = $1 and source is not null",
                &[&feed.0],
            )
            .await
            .map_err(db)?;
        let source = |row: Row| {
            Ok(StoredSource {
                captured: row.take(0)?,
                oid: row.take(1)?,
                change_id_column: row.take(2)?,
                shard_by: row.take(3)?,
                shards: ShardRange {
                    first: row.take(4)?,
                    count: row.take(5)?,
                },
                images: row.take(6)?,
            })
        };
        row.map(source).transpose()
    }

    /// The table with the columns that the feed knows its rows by as its key, whatever its primary key is by now.
    pub(crate) async fn captured_table(
        &self,
        client: &impl GenericClient,
        feed: &Feed,
    ) -> Result<Table> {
        let mut table = self.table(client, feed).await?;
        let row = client
            .query_one(
                "select changefeed.key_numbers(f), l.problem, l.advice from changefeed.feed_source f, \
                 changefeed.lost_key(f.feed_id) l where f.feed_id = $1",
                &[&feed.id.0],
            )
            .await
            .map_err(db)?;
        if let Some(problem) = row.take::<Option<String>>(1)? {
            let advice: Option<String> = row.take(2)?;
            return Err(Error::invalid(problem).advise(advice.unwrap_or_default()));
        }
        let places: Vec<i16> = row.take(0)?;
        let column = |place: &i16| table.columns.iter().find(|c| c.place == *place);
        table.key = places.iter().filter_map(column).cloned().collect();
        Ok(table)
    }

    /// The table, or an error that says that it was dropped.
    pub(crate) async fn table(&self, client: &impl GenericClient, feed: &Feed) -> Result<Table> {
        Table::load(client, self.oid)
            .await?
            .ok_or_else(|| feed.table_dropped())
    }
}

/// The row types of the tables behind feeds, by their numbers. The server is told one with each page, and
/// refuses it if it is not that of the feed's table any more.
#[derive(Debug, Default)]
pub(crate) struct RowTypes(Mutex<HashMap<FeedId, Type>>);

impl RowTypes {
    pub(crate) fn forget(&self, feed: FeedId) {
        self.all().remove(&feed);
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<FeedId, Type>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A row type that is known by its number only.
pub(crate) fn row_type(oid: u32) -> Type {
    let pseudo = tokio_postgres::types::Kind::Pseudo;
    Type::new("row".to_owned(), oid, pseudo, String::new())
}

impl Session {
    /// The row type of a feed's table, and any type if it has none.
    pub(crate) async fn row_type(&self, feed: &Feed) -> Result<Type> {
        if let Some(known) = self.known.row_types.all().get(&feed.id) {
            return Ok(known.clone());
        }
        let row = self
            .query_opt(
                "select c.reltype, f.images from changefeed.feed_source f \
                 left join pg_catalog.pg_class c on c.oid = f.source \
                 where f.feed_id = $1 and f.source is not null",
                &[&feed.id.0],
            )
            .await
            .map_err(db)?;
        let found = row.map(|row| Ok((row.take::<Option<u32>>(0)?, row.take(1)?)));
        let found = match found.transpose()? {
            None => Type::TEXT,
            Some((Some(oid), _)) => row_type(oid),
            // What it has kept is there without the table.
            Some((None, true)) => return Ok(Type::TEXT),
            Some((None, false)) => return Err(feed.table_dropped()),
        };
        self.known.row_types.all().insert(feed.id, found.clone());
        Ok(found)
    }
}
