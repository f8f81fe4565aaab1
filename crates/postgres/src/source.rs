//! The table behind a feed, as the catalogue describes it now, and the SQL that joins its rows.

use std::sync::Arc;

use changefeed_core::{Error, Feed, FeedId, Kind, PageJoin, PageRows, Result, Source, TableName};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::session::Session;
use crate::{names, quote};

/// A column of a table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The type as SQL, for casting a text back.
    pub(crate) type_sql: String,
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

    /// Whether the column of a row still has its type.
    pub(crate) fn is_known(&self, alias: &str) -> String {
        format!(
            "pg_catalog.pg_typeof({alias}.{})::pg_catalog.oid operator(pg_catalog.=) \
             {}::pg_catalog.oid",
            quote::identifier(&self.name),
            self.type_oid
        )
    }

    /// `alias."name" = (array ->> place)::type`
    fn equals(&self, alias: &str, array: &str, place: usize) -> String {
        format!(
            "{alias}.{} = ({array}->>{place})::{}",
            quote::identifier(&self.name),
            self.type_sql
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

    /// Keeps the table's name until the end of the transaction: what is read by it is of this table, and
    /// not of another that takes its place meanwhile.
    pub(crate) async fn hold(&self, client: &impl GenericClient) -> Result<()> {
        let lock = format!("lock table only {} in access share mode", self.sql);
        client.batch_execute(&lock).await.map_err(db)?;
        let held: Option<u32> = client
            .query_one("select to_regclass($1)::oid", &[&self.sql])
            .await
            .map_err(db)?
            .get(0);
        if held == Some(self.oid) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Busy,
            format!("{} was replaced by another table at this moment", self.name),
        )
        .advise("try again"))
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
        let name = TableName::qualified(row.get::<_, String>(0), row.get::<_, String>(1));
        let columns = client
            .query(include_str!("sql/columns.sql"), &[&oid])
            .await
            .map_err(db)?;
        let column = |row: &tokio_postgres::Row| Column {
            name: row.get(0),
            type_sql: row.get(1),
            base_type: row.get(3),
            type_oid: row.get(4),
            place: row.get(5),
        };
        let mut key: Vec<(i32, Column)> = columns
            .iter()
            .filter_map(|row| {
                row.get::<_, Option<i32>>(2)
                    .map(|place| (place, column(row)))
            })
            .collect();
        key.sort_by_key(|(place, _)| *place);
        Ok(Some(Table {
            oid,
            sql: quote::table(&name),
            name,
            relkind: row.get(2),
            key: key.into_iter().map(|(_, column)| column).collect(),
            columns: columns.iter().map(column).collect(),
        }))
    }

    /// A column, or an error that names the columns there are.
    pub(crate) fn column(&self, name: &str) -> Result<&Column> {
        self.columns.iter().find(|c| c.name == name).ok_or_else(|| {
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
            .map(|(i, c)| c.equals(alias, array, i))
            .collect();
        parts.join(" and ")
    }

    /// The key of a row as a JSON array of texts.
    pub(crate) fn key_array(&self, alias: &str) -> String {
        let parts: Vec<String> = self.key.iter().map(|c| c.text(alias)).collect();
        format!("pg_catalog.jsonb_build_array({})", parts.join(", "))
    }

    /// The shard of a row, as an expression.
    pub(crate) fn shard_expression(
        &self,
        alias: &str,
        column: Option<&str>,
        shards: i16,
    ) -> Result<String> {
        let Some(column) = column else {
            return Ok("0::pg_catalog.int2".to_owned());
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
        Ok(format!("changefeed.shard_of({value}, {shards})"))
    }
}

fn missing(name: &TableName) -> Error {
    Error::not_found(format!("there is no table {name}"))
        .advise("write it as in SQL, with its schema if it is not in the search path")
}

/// What the database remembers about a feed's source.
pub(crate) struct StoredSource {
    pub(crate) captured: bool,
    pub(crate) oid: u32,
    pub(crate) change_id_column: Option<String>,
    pub(crate) shard_by: Option<String>,
    pub(crate) shards: i16,
}

impl StoredSource {
    pub(crate) async fn load(client: &impl GenericClient, feed: FeedId) -> Result<Option<Self>> {
        let row = client
            .query_opt(
                "select kind = 'captured', source::oid, change_id_column, shard_by, shards \
                 from changefeed.feed_source where feed_id = $1 and source is not null",
                &[&feed.0],
            )
            .await
            .map_err(db)?;
        Ok(row.map(|row| StoredSource {
            captured: row.get(0),
            oid: row.get(1),
            change_id_column: row.get(2),
            shard_by: row.get(3),
            shards: row.get(4),
        }))
    }

    /// The table, or an error that says that it was dropped.
    pub(crate) async fn table(&self, client: &impl GenericClient, feed: &Feed) -> Result<Table> {
        Table::load(client, self.oid)
            .await?
            .ok_or_else(|| feed.table_dropped())
    }
}

impl Session {
    /// The SQL that reads a page of this feed.
    pub(crate) async fn join(
        &self,
        client: &impl GenericClient,
        feed: &Feed,
    ) -> Result<Arc<PageJoin>> {
        match self.known.joins.known(feed.id) {
            Some(join) => Ok(join),
            None => Ok(self
                .known
                .joins
                .remember(feed.id, build(client, feed).await?)),
        }
    }
}

async fn build(client: &impl GenericClient, feed: &Feed) -> Result<PageJoin> {
    let page = include_str!("sql/page.sql");
    if feed.source == Some(Source::Events) {
        return Ok(crate::event_feeds::join(page));
    }
    let Some(source) = StoredSource::load(client, feed.id).await? else {
        let sql =
            format!("select p.change_sequence_number, p.change_id from ({page}) p order by 1");
        return Ok(PageJoin {
            sql,
            rows: PageRows::None,
        });
    };
    let table = source.table(client, feed).await?;
    let (join, condition) = match &source.change_id_column {
        Some(column) if !source.captured => (
            String::new(),
            format!("changefeed_row.{} = p.change_id", quote::identifier(column)),
        ),
        _ => (
            "left join changefeed.change_row r on r.change_id = p.change_id".to_owned(),
            table.key_equals("changefeed_row", "r.key"),
        ),
    };
    // An alias that no column has: in `row_to_json(t)` a column `t` would win over the row.
    let sql = format!(
        "select p.change_sequence_number, p.change_id, \
           (select row_to_json(changefeed_row)::text from {} changefeed_row where {condition} \
            limit 1) \
         from ({page}) p {join} order by 1",
        table.sql
    );
    Ok(PageJoin {
        sql,
        rows: PageRows::Current,
    })
}
