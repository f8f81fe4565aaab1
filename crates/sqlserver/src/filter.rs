//! What a feed shows of a table: some rows, or some columns.

use changefeed_core::{Dialect, Fold, Result, Source};

use crate::condition::{Condition, Row};
use crate::json;
use crate::source::{Column, Table};

pub(crate) const DIALECT: Dialect = Dialect {
    fold: Fold::Keep,
    backslashes: false,
    // Our own parser of conditions knows it, whatever the server knows.
    distinct_from: true,
};

pub(crate) struct Filter {
    pub(crate) condition: Option<Condition>,
    pub(crate) shown: Vec<Column>,
    some_columns: bool,
    images: bool,
}

impl Filter {
    pub(crate) fn of(table: &Table, source: &Source) -> Result<Filter> {
        let shown = match source.columns() {
            None => table.columns.clone(),
            Some(columns) => columns
                .iter()
                .map(|c| table.column(c).cloned())
                .collect::<Result<_>>()?,
        };
        let condition = source.condition(DIALECT.fold)?;
        let condition = condition
            .map(|c| Condition::parse(&c.sql_of("new", DIALECT), table))
            .transpose()?;
        Ok(Filter {
            condition,
            shown,
            some_columns: source.columns().is_some(),
            images: source.keeps_images(),
        })
    }

    /// That the row which goes by this name is in the feed, as one more condition.
    pub(crate) fn and_here(&self, alias: &str) -> String {
        self.condition.as_ref().map_or_else(String::new, |c| {
            format!(" and {}", c.sql(Row::Missing, Row::Called(alias)))
        })
    }

    /// The row that goes by this name as JSON; null if images are not kept.
    pub(crate) fn image(&self, alias: &str) -> String {
        match self.images {
            true => json::object(&self.shown, alias),
            false => "convert(nvarchar(max), null)".to_owned(),
        }
    }

    /// The same, and null if the row is not in the feed.
    pub(crate) fn image_if_here(&self, alias: &str) -> String {
        match &self.condition {
            Some(c) => format!(
                "case when {} then {} end",
                c.sql(Row::Missing, Row::Called(alias)),
                self.image(alias)
            ),
            None => self.image(alias),
        }
    }

    /// That an update has changed what the feed shows, as one more condition.
    pub(crate) fn and_differs(&self, old: &str, new: &str, key: &str) -> String {
        match self.some_columns {
            true => format!(
                " and ({old}.{key} is null or {} <> {} collate Latin1_General_BIN2)",
                self.image(old),
                self.image(new)
            ),
            false => String::new(),
        }
    }
}
