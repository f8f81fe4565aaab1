//! The table behind a feed, as the catalogue describes it now, and the SQL that joins its rows.

use std::sync::Arc;

use changefeed_core::{
    Error, Feed, FeedId, PageJoin, PageJoins, PageRows, Result, Source, TableName,
};

use crate::connection::Connection;
use crate::{event_feeds, json, quote};

/// A column of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The system type beneath.
    pub(crate) base_type: String,
    /// That type with its length, as SQL.
    pub(crate) type_sql: String,
    /// How it sorts and compares, where that is not as the database does.
    pub(crate) collation: Option<String>,
    /// How many bytes it takes; less than 0 if there is no end to it.
    pub(crate) bytes: i32,
    /// Its number in the table, which stays when it is renamed.
    pub(crate) place: i32,
    pub(crate) nullable: bool,
}

impl Column {
    /// A column of a type without a length, for tests and checks.
    pub(crate) fn plain(name: &str, base_type: &str) -> Self {
        Column {
            name: name.to_owned(),
            base_type: base_type.to_owned(),
            type_sql: base_type.to_owned(),
            collation: None,
            bytes: 0,
            place: 1,
            nullable: false,
        }
    }

    /// The type in a table of ours: what is equal there is equal here.
    pub(crate) fn our_type(&self) -> String {
        match &self.collation {
            Some(collation) => format!("{} collate {collation}", self.type_sql),
            None => self.type_sql.clone(),
        }
    }

    pub(crate) fn is_integer(&self) -> bool {
        ["tinyint", "smallint", "int", "bigint"].contains(&self.base_type.as_str())
    }

    /// `alias."name" = text`
    pub(crate) fn equals_text(&self, alias: &str, text: &str) -> String {
        format!(
            "{alias}.{} = {}",
            quote::identifier(&self.name),
            json::from_text(self, text)
        )
    }
}

/// A table as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) id: i32,
    /// Schema and name, quoted.
    pub(crate) sql: String,
    pub(crate) name: TableName,
    /// `U` table, `V` view, …
    pub(crate) kind: String,
    /// Its owner and that of our schema, if these are two.
    pub(crate) owners: Option<(String, String)>,
    pub(crate) key: Vec<Column>,
    pub(crate) columns: Vec<Column>,
}

impl Table {
    /// Looks a table up by name, in the user's default schema if none is given.
    pub(crate) async fn find(connection: &mut Connection, name: &TableName) -> Result<Table> {
        let rows = connection
            .query(
                "select top (1) convert(int, o.object_id) from sys.objects o \
                 where o.name = @P1 and o.type in ('U', 'V') \
                   and schema_name(o.schema_id) in (@P2, schema_name(), N'dbo') \
                   and (@P2 = N'' or schema_name(o.schema_id) = @P2) \
                 order by case when schema_name(o.schema_id) = schema_name() then 0 else 1 end",
                &[&name.name, &name.schema.as_deref().unwrap_or_default()],
            )
            .await?;
        match rows.first().and_then(|row| row.get::<i32, _>(0)) {
            Some(id) => Table::load(connection, id)
                .await?
                .ok_or_else(|| missing(name)),
            None => Err(missing(name)),
        }
    }

    /// Reads the catalogue; `None` if there is no such table any more.
    pub(crate) async fn load(connection: &mut Connection, id: i32) -> Result<Option<Table>> {
        let rows = connection
            .query(include_str!("sql/columns.sql"), &[&id])
            .await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let text =
            |row: &tiberius::Row, at: usize| row.get::<&str, _>(at).unwrap_or_default().to_owned();
        let name = TableName::qualified(text(first, 0), text(first, 1));
        let kind = text(first, 2).trim().to_owned();
        let owner = |at: usize| first.get::<&str, _>(at).map(str::to_owned);
        let owners = owner(12).zip(owner(13));
        let mut key = Vec::new();
        let mut columns = Vec::new();
        for row in &rows {
            let base_type = text(row, 4);
            let [length, precision, scale] =
                [5, 6, 7].map(|at| row.get::<i32, _>(at).unwrap_or_default());
            let column = Column {
                name: text(row, 3),
                type_sql: type_sql(&base_type, length, precision, scale),
                base_type,
                collation: row.get::<&str, _>(11).map(str::to_owned),
                bytes: length,
                place: row.get(8).unwrap_or_default(),
                nullable: row.get::<bool, _>(9) == Some(true),
            };
            if let Some(place) = row.get::<i32, _>(10) {
                key.push((place, column.clone()));
            }
            columns.push(column);
        }
        key.sort_by_key(|(place, _)| *place);
        Ok(Some(Table {
            id,
            sql: quote::table(&name),
            name,
            kind,
            owners,
            key: key.into_iter().map(|(_, column)| column).collect(),
            columns,
        }))
    }

    /// A column, or an error that names the columns there are. Names are compared as most
    /// databases are set up to, without regard to case, if no column is spelt exactly so.
    pub(crate) fn column(&self, name: &str) -> Result<&Column> {
        let exact = self.columns.iter().find(|c| c.name == name);
        let alike = || {
            self.columns
                .iter()
                .find(|c| c.name.eq_ignore_ascii_case(name))
        };
        exact.or_else(alike).ok_or_else(|| {
            let known: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
            Error::not_found(format!("table {} has no column '{name}'", self.name))
                .advise(format!("its columns are {}", known.join(", ")))
        })
    }

    /// `alias.key = array`, for a JSON array of texts.
    pub(crate) fn key_equals(&self, alias: &str, array: &str) -> String {
        let parts: Vec<String> = self
            .key
            .iter()
            .enumerate()
            .map(|(i, c)| c.equals_text(alias, &format!("json_value({array}, '$[{i}]')")))
            .collect();
        parts.join(" and ")
    }

    /// `a.key = b.key`
    pub(crate) fn same_key(&self, a: &str, b: &str) -> String {
        let parts: Vec<String> = self
            .key
            .iter()
            .map(|c| {
                let name = quote::identifier(&c.name);
                format!("{a}.{name} = {b}.{name}")
            })
            .collect();
        parts.join(" and ")
    }

    /// The key of a row as a JSON array of texts.
    pub(crate) fn key_array(&self, alias: &str) -> String {
        json::array(&self.key, alias)
    }

    /// A row as a JSON object.
    pub(crate) fn row_json(&self, alias: &str) -> String {
        json::object(&self.columns, alias)
    }

    /// The shard of a row, as an expression.
    pub(crate) fn shard_expression(
        &self,
        alias: &str,
        column: Option<&str>,
        shards: i16,
    ) -> Result<String> {
        let Some(column) = column else {
            return Ok("convert(smallint, 0)".to_owned());
        };
        let column = self.column(column)?;
        if column.is_integer() {
            let value = format!(
                "convert(bigint, {alias}.{})",
                quote::identifier(&column.name)
            );
            return Ok(format!(
                "convert(smallint, isnull(({value} % {shards} + {shards}) % {shards}, 0))"
            ));
        }
        Ok(format!(
            "changefeed.shard_of({}, {shards})",
            json::text(column, alias)
        ))
    }
}

fn type_sql(base: &str, length: i32, precision: i32, scale: i32) -> String {
    match base {
        "varchar" | "char" | "varbinary" | "binary" if length < 0 => format!("{base}(max)"),
        "varchar" | "char" | "varbinary" | "binary" => format!("{base}({length})"),
        "nvarchar" | "nchar" if length < 0 => format!("{base}(max)"),
        // The catalogue counts bytes.
        "nvarchar" | "nchar" => format!("{base}({})", length / 2),
        "decimal" | "numeric" => format!("{base}({precision}, {scale})"),
        "datetime2" | "datetimeoffset" | "time" => format!("{base}({scale})"),
        // A version of a row is read back as the bytes that it is.
        "timestamp" | "rowversion" => "binary(8)".to_owned(),
        _ => base.to_owned(),
    }
}

fn missing(name: &TableName) -> Error {
    Error::not_found(format!("there is no table {name}")).advise(
        "write it as in SQL, with its schema if it is not in the user's default schema; a table \
         that the user may not see is not there for us either",
    )
}

/// What the database remembers about a feed's source.
pub(crate) struct StoredSource {
    pub(crate) captured: bool,
    pub(crate) table_id: i32,
    pub(crate) change_id_column: Option<String>,
    pub(crate) shard_by: Option<String>,
    pub(crate) shards: i16,
}

impl StoredSource {
    pub(crate) async fn load(connection: &mut Connection, feed: FeedId) -> Result<Option<Self>> {
        let rows = connection
            .query(
                "select convert(nvarchar(10), kind), table_id, change_id_column, shard_by, shards \
                 from changefeed.feed_source where feed_id = @P1 and table_id is not null",
                &[&feed.0],
            )
            .await?;
        Ok(rows.first().map(|row| StoredSource {
            captured: row.get::<&str, _>(0) == Some("captured"),
            table_id: row.get(1).unwrap_or_default(),
            change_id_column: row.get::<&str, _>(2).map(str::to_owned),
            shard_by: row.get::<&str, _>(3).map(str::to_owned),
            shards: row.get(4).unwrap_or(1),
        }))
    }

    /// The table, or an error that says that it was dropped.
    pub(crate) async fn table(&self, connection: &mut Connection, feed: &Feed) -> Result<Table> {
        Table::load(connection, self.table_id)
            .await?
            .ok_or_else(|| {
                Error::not_found(format!(
                    "the table behind feed '{}' was dropped, or this user may not see it",
                    feed.name
                ))
                .advise(format!(
                    "grant select on it to this user; if it was dropped, `changefeed feed drop {}` removes \
                     the feed",
                    feed.name
                ))
            })
    }
}

/// The SQL that reads a page of this feed.
pub(crate) async fn join(
    joins: &PageJoins,
    connection: &mut Connection,
    feed: &Feed,
) -> Result<Arc<PageJoin>> {
    match joins.known(feed.id) {
        Some(join) => Ok(join),
        None => Ok(joins.remember(feed.id, build(connection, feed).await?)),
    }
}

async fn build(connection: &mut Connection, feed: &Feed) -> Result<PageJoin> {
    if feed.source == Some(Source::Events) {
        let (row, join) = event_feeds::page();
        return Ok(PageJoin {
            sql: page(&row, &["op", "old", "new"], join),
            rows: PageRows::Events,
        });
    }
    let Some(source) = StoredSource::load(connection, feed.id).await? else {
        return Ok(PageJoin {
            sql: page("", &[], ""),
            rows: PageRows::None,
        });
    };
    let table = source.table(connection, feed).await?;
    let rows = match &source.change_id_column {
        Some(column) if !source.captured => joined(&table, column),
        _ => captured(&table),
    };
    Ok(PageJoin {
        sql: rows,
        rows: PageRows::Current,
    })
}

/// The rows of a table whose changes our trigger publishes. Row by row, by their keys: a join that reads
/// a whole table would wait for its writers.
pub(crate) fn captured(table: &Table) -> String {
    let row = format!(
        ", (select top (1) {} from {} t with (forceseek) where {}) as [new]",
        table.row_json("t"),
        table.sql,
        table.key_equals("t", "r.[key]")
    );
    page(
        &row,
        &["new"],
        "left join changefeed.change_row r with (forceseek) \
         on r.change_id = p.change_id and r.feed_id = @feed_id",
    )
}

/// The rows of a table that holds the ids of its changes itself.
pub(crate) fn joined(table: &Table, column: &str) -> String {
    let row = format!(
        ", (select top (1) {} from {} t where t.{} = p.change_id) as [new]",
        table.row_json("t"),
        table.sql,
        quote::identifier(column)
    );
    page(&row, &["new"], "")
}

/// A page that has these columns beside its numbers.
fn page(row: &str, names: &[&str], join: &str) -> String {
    let named: Vec<String> = names
        .iter()
        .map(|name| format!(", q.{}", quote::identifier(name)))
        .collect();
    let bytes: Vec<String> = ["old", "new"]
        .iter()
        .filter(|name| names.contains(name))
        .map(|name| format!("isnull(datalength(f.{}), 0) / 2", quote::identifier(name)))
        .collect();
    let bytes = match bytes.is_empty() {
        true => "0".to_owned(),
        false => bytes.join(" + "),
    };
    changefeed_core::fill(
        include_str!("sql/page.sql"),
        &[
            ("row", row),
            ("names", &named.concat()),
            ("bytes", &bytes),
            ("join", join),
        ],
    )
}
