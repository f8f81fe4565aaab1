//! The table behind a feed, as the catalogue describes it now, and the SQL that joins its rows.

use std::sync::Arc;

use changefeed_core::{
    Error, Feed, FeedId, Kind, PageJoin, PageJoins, PageRows, Result, ShardRange, Source,
    TableName, words,
};

use crate::connection::Connection;
use crate::row::{Cells, first};
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
    /// Whether its values are numbers in JSON.
    pub(crate) fn is_number(&self) -> bool {
        matches!(
            self.base_type.as_str(),
            "tinyint"
                | "smallint"
                | "int"
                | "bigint"
                | "decimal"
                | "numeric"
                | "money"
                | "smallmoney"
                | "float"
                | "real"
        )
    }

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
        match first::<i32>(&rows, 0)? {
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
        let Some(head) = rows.first() else {
            return Ok(None);
        };
        let name = TableName::qualified(head.text(0)?, head.text(1)?);
        let kind = head.take::<&str>(2)?.trim().to_owned();
        let owners = head.maybe_text(12)?.zip(head.maybe_text(13)?);
        let mut key = Vec::new();
        let mut columns = Vec::new();
        for row in &rows {
            // A type that this user may not see has no name.
            let base_type = row.maybe_text(4)?.unwrap_or_default();
            let length = row.take(5)?;
            let precision = row.maybe(6)?.unwrap_or_default();
            let scale = row.maybe(7)?.unwrap_or_default();
            let column = Column {
                name: row.text(3)?,
                type_sql: type_sql(&base_type, length, precision, scale),
                base_type,
                collation: row.maybe_text(11)?,
                bytes: length,
                place: row.take(8)?,
                nullable: row.says(9)?,
            };
            if let Some(place) = row.maybe::<i32>(10)? {
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

    /// The primary key as it is stored with a feed.
    pub(crate) fn key_numbers(&self) -> String {
        let places: Vec<String> = self.key.iter().map(|c| c.place.to_string()).collect();
        places.join(",")
    }

    /// Makes those columns its key by which a feed knows its rows, whatever the primary key is by now.
    /// Returns why they do not tell rows apart any more, and fails if one of them is gone.
    pub(crate) fn known_by(&mut self, numbers: &str) -> Result<Option<Error>> {
        let wanted: Vec<i32> = numbers.split(',').filter_map(|n| n.parse().ok()).collect();
        let column = |place: &i32| self.columns.iter().find(|c| c.place == *place);
        let known: Vec<Column> = wanted.iter().filter_map(column).cloned().collect();
        let again = "drop the feed and make it again: its key is another one now";
        if known.len() < wanted.len() {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "a column of {} was dropped that the feed knows its rows by",
                    self.name
                ),
            )
            .advise(again));
        }
        let now = std::mem::replace(&mut self.key, known);
        if now.len() == self.key.len() && now.iter().all(|c| wanted.contains(&c.place)) {
            return Ok(None);
        }
        let names = |key: &[Column]| {
            let names: Vec<&str> = key.iter().map(|c| c.name.as_str()).collect();
            names.join(", ")
        };
        Ok(Some(
            Error::new(
                Kind::Unsupported,
                format!(
                    "the primary key of {} is ({}) now, but the feed knows its rows by ({})",
                    self.name,
                    names(&now),
                    names(&self.key)
                ),
            )
            .advise(again),
        ))
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
            words::no_column(&self.name, name, &known)
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

    /// The same, where `a` and `A` are two keys, whatever the columns' collations: so they are to a reader.
    pub(crate) fn exactly_same_key(&self, a: &str, b: &str) -> String {
        let mut all = self.same_key(a, b);
        for column in self.key.iter().filter(|c| c.collation.is_some()) {
            let name = quote::identifier(&column.name);
            let exact = |alias: &str| {
                format!("convert(nvarchar(4000), {alias}.{name}) collate Latin1_General_BIN2")
            };
            all.push_str(&format!(
                " and {} = {} and datalength({a}.{name}) = datalength({b}.{name})",
                exact(a),
                exact(b)
            ));
        }
        all
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
        shards: ShardRange,
    ) -> Result<String> {
        let ShardRange { first, count } = shards;
        let Some(column) = column else {
            return Ok(format!("convert(smallint, {first})"));
        };
        let column = self.column(column)?;
        if column.is_integer() {
            let value = format!(
                "convert(bigint, {alias}.{})",
                quote::identifier(&column.name)
            );
            return Ok(format!(
                "convert(smallint, {first} + isnull(({value} % {count} + {count}) % {count}, 0))"
            ));
        }
        Ok(format!(
            "convert(smallint, {first} + changefeed.shard_of({}, {count}))",
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
    words::no_table(name).advise(
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
    pub(crate) shards: ShardRange,
    pub(crate) images: bool,
    pub(crate) key_columns: Option<String>,
}

impl StoredSource {
    pub(crate) async fn load(connection: &mut Connection, feed: FeedId) -> Result<Option<Self>> {
        let rows = connection
            .query(
                "select convert(nvarchar(10), kind), table_id, change_id_column, shard_by, shards, images, \
                   convert(nvarchar(200), key_columns), first_shard \
                 from changefeed.feed_source where feed_id = @P1 and table_id is not null",
                &[&feed.0],
            )
            .await?;
        let source = |row: &tiberius::Row| {
            Ok(StoredSource {
                captured: row.maybe::<&str>(0)? == Some("captured"),
                table_id: row.take(1)?,
                change_id_column: row.maybe_text(2)?,
                shard_by: row.maybe_text(3)?,
                shards: ShardRange {
                    first: row.maybe(7)?.unwrap_or(0),
                    count: row.maybe(4)?.unwrap_or(1),
                },
                images: row.says(5)?,
                key_columns: row.maybe_text(6)?,
            })
        };
        rows.first().map(source).transpose()
    }

    /// The table, or an error that says that it was dropped, or that its rows have got another key.
    pub(crate) async fn table(&self, connection: &mut Connection, feed: &Feed) -> Result<Table> {
        let mut table = Table::load(connection, self.table_id)
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
            })?;
        let lost = self.key_columns.as_deref().map(|key| table.known_by(key));
        match lost.transpose()?.flatten() {
            Some(lost) => Err(lost),
            None => Ok(table),
        }
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
            sql: page(&row, &["op", "old", "new"], join)?,
            rows: PageRows::Events,
        });
    }
    let Some(source) = StoredSource::load(connection, feed.id).await? else {
        return Ok(PageJoin {
            sql: page("", &[], "")?,
            rows: PageRows::None,
        });
    };
    let table = source.table(connection, feed).await?;
    let (sql, rows) = match &source.change_id_column {
        Some(column) if !source.captured => (joined(&table, column)?, PageRows::Current),
        _ => (captured(&table)?, PageRows::Captured),
    };
    Ok(PageJoin { sql, rows })
}

/// The rows of a table whose changes our trigger publishes. Row by row, by their keys: a join that reads
/// a whole table would wait for its writers. After a delete, a row that has this key is another one.
pub(crate) fn captured(table: &Table) -> Result<String> {
    let row = format!(
        ", r.op, {} as [key], convert(int, case when r.[old] is null and r.[new] is null then 0 else 1 end) as images, \
         r.[old], case when r.[new] is not null then r.[new] when r.op <> 'D' and r.[old] is null then \
         (select top (1) {} from {} t with (forceseek) where {}) end as [new]",
        json::object_of_texts(&table.key, "r.[key]"),
        table.row_json("t"),
        table.sql,
        table.key_equals("t", "r.[key]")
    );
    page(
        &row,
        &["op", "key", "images", "old", "new"],
        "left join changefeed.change_row r with (forceseek) \
         on r.change_id = p.change_id and r.feed_id = @feed_id",
    )
}

/// The rows of a table that holds the ids of its changes itself.
pub(crate) fn joined(table: &Table, column: &str) -> Result<String> {
    let row = format!(
        ", (select top (1) {} from {} t where t.{} = p.change_id) as [new]",
        table.row_json("t"),
        table.sql,
        quote::identifier(column)
    );
    page(&row, &["new"], "")
}

/// A page that has these columns beside its numbers.
fn page(row: &str, names: &[&str], join: &str) -> Result<String> {
    let named: Vec<String> = names
        .iter()
        .map(|name| format!(", q.{}", quote::identifier(name)))
        .collect();
    let bytes: Vec<String> = ["key", "old", "new"]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_knows_rows_by_the_columns_it_was_made_with() {
        let column = |name: &str, place| Column {
            place,
            ..Column::plain(name, "int")
        };
        let table = |key: &[Column], columns: &[Column]| Table {
            id: 1,
            sql: String::new(),
            name: TableName::unqualified("t"),
            kind: "U".to_owned(),
            owners: None,
            key: key.to_vec(),
            columns: columns.to_vec(),
        };
        let (a, b, c) = (column("a", 1), column("b", 2), column("c", 4));
        let all = [a.clone(), b.clone(), c.clone()];
        let mut same = table(&[c.clone(), a.clone()], &all);
        assert_eq!(same.key_numbers(), "4,1");
        assert!(same.known_by("1,4").unwrap().is_none());
        assert_eq!(same.key, [a.clone(), c.clone()]);
        let mut moved = table(&[b], &all);
        let why = moved.known_by("1").unwrap().unwrap();
        assert!(why.message().contains("(b) now"), "{why:?}");
        assert_eq!(moved.key_numbers(), "1");
        assert!(table(&[a], &all).known_by("1,3").is_err());
    }
}
