//! What a feed shows of a table: some rows, or some columns. A row that is not in the feed has no image, and everything
//! else follows from that: to readers it comes and goes with its image.

use changefeed_core::{Condition, Dialect, Error, Fold, Result, Source};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::quote;
use crate::row::Cells;
use crate::source::Table;
use crate::template::fill;

pub(crate) const DIALECT: Dialect = Dialect {
    fold: Fold::Lower,
    backslashes: true,
    distinct_from: true,
};

#[derive(Debug)]
pub(crate) struct Filter<'a> {
    table: &'a Table,
    /// Over the columns of `changefeed_row`.
    condition: Option<String>,
    columns: Option<&'a [String]>,
    /// The columns that the condition looks at.
    asked: Vec<String>,
}

impl<'a> Filter<'a> {
    pub(crate) fn of(table: &'a Table, source: &'a Source) -> Result<Self> {
        let condition = source.condition(DIALECT.fold)?;
        let asked = condition.iter().flat_map(Condition::columns);
        Ok(Filter {
            table,
            asked: asked.map(str::to_owned).collect(),
            condition: condition.map(|c| c.sql_of("changefeed_row", DIALECT)),
            columns: source.columns(),
        })
    }

    fn is_none(&self) -> bool {
        self.condition.is_none() && self.columns.is_none()
    }

    pub(crate) fn has_condition(&self) -> bool {
        self.condition.is_some()
    }

    /// Checks that the table has the columns that are named.
    pub(crate) fn check_columns(&self) -> Result<()> {
        for column in self.asked.iter().chain(self.columns.unwrap_or_default()) {
            self.table.column(column)?;
        }
        Ok(())
    }

    /// Has the server look at the condition as it would in the trigger, so that a mistake shows now.
    pub(crate) async fn check(&self, client: &impl GenericClient) -> Result<()> {
        self.check_columns()?;
        if self.condition.is_none() {
            return Ok(());
        }
        let image = self.image(client, "changefeed_given").await?;
        let sql = format!("select {image} from {} changefeed_given", self.table.sql);
        client.prepare(&sql).await.map(drop).map_err(|e| {
            Error::invalid(format!("the condition does not fit {}", self.table.name))
                .advise("compare its columns with values of their types")
                .caused_by(db(e))
        })
    }

    /// The row that goes by this name as JSON, or null if it is not in the feed.
    pub(crate) async fn image(&self, client: &impl GenericClient, alias: &str) -> Result<String> {
        let row = client
            .query_one(
                "select changefeed.safe_columns($1, $2, null), changefeed.row_json($1, $2, $3)",
                &[&self.table.oid, &alias, &self.columns],
            )
            .await
            .map_err(db)?;
        let (values, json): (String, String) = (row.take(0)?, row.take(1)?);
        Ok(match &self.condition {
            None => json,
            Some(condition) => format!(
                "case when (select ({condition}) from (select {values}) changefeed_row) then {json} end"
            ),
        })
    }

    /// The same of a table that was altered since the trigger was made.
    pub(crate) fn image_now(&self, alias: &str) -> String {
        if self.is_none() {
            return format!("changefeed.image_now(tg_relid, {alias})");
        }
        let condition = self.condition.as_deref().map(quote::literal);
        let columns = self.columns.map(|columns| {
            let names: Vec<String> = columns.iter().map(|c| quote::literal(c)).collect();
            format!("array[{}]::pg_catalog.text[]", names.join(", "))
        });
        format!(
            "changefeed.image_now(tg_relid, {alias}, {}, {})",
            condition.as_deref().unwrap_or("null"),
            columns.as_deref().unwrap_or("null")
        )
    }

    /// What the trigger does about rows that have no image.
    pub(crate) fn sql(&self) -> Result<String> {
        if self.is_none() {
            return Ok(String::new());
        }
        let only_columns = if self.columns.is_some() {
            "true"
        } else {
            "false"
        };
        fill(
            include_str!("sql/capture_filter.sql"),
            &[("only_columns", only_columns)],
        )
    }
}
