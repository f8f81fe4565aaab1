//! What a feed shows of a table: some rows, or some columns. A row that is not in the feed has no image, and everything
//! else follows from that: to readers it comes and goes with its image.

use changefeed_core::{Condition, Dialect, Fold, Result, Source};

use crate::event_row;
use crate::source::Table;

pub(crate) const DIALECT: Dialect = Dialect {
    fold: Fold::Keep,
    backslashes: false,
    // Programs with an SQLite from before 3.39 write to captured tables as well.
    distinct_from: false,
};

pub(crate) struct Filter {
    condition: Option<Condition>,
    /// The columns that are shown, as the table writes them.
    shown: Vec<String>,
    some_columns: bool,
    images: bool,
}

impl Filter {
    pub(crate) fn of(table: &Table, source: &Source) -> Result<Filter> {
        let shown = match source.columns() {
            None => table.columns.clone(),
            Some(columns) => columns
                .iter()
                .map(|c| table.column(c).map(str::to_owned))
                .collect::<Result<_>>()?,
        };
        let condition = source.condition(DIALECT.fold)?;
        for column in condition.iter().flat_map(Condition::columns) {
            table.column(column)?;
        }
        Ok(Filter {
            condition,
            shown,
            some_columns: source.columns().is_some(),
            images: source.keeps_images(),
        })
    }

    /// Whether the row that goes by this name is in the feed.
    pub(crate) fn here(&self, alias: &str) -> String {
        match &self.condition {
            Some(condition) => format!("coalesce(({}), 0)", condition.sql_of(alias, DIALECT)),
            None => "1".to_owned(),
        }
    }

    /// The row that goes by this name as JSON; null if it is not in the feed, or if images are not kept.
    pub(crate) fn image(&self, alias: &str) -> Result<String> {
        if !self.images {
            return Ok("null".to_owned());
        }
        let object = event_row::object(alias, &self.shown)?;
        Ok(match self.condition {
            Some(_) => format!("case when {} then {object} end", self.here(alias)),
            None => object,
        })
    }

    /// Of an update: whether the row is deleted where it was, whether it is inserted where it is, and whether there is
    /// anything to tell of it as it is. `moved` says whether it has another key or shard.
    pub(crate) fn update(&self, moved: &str) -> Result<[String; 3]> {
        let (old, new) = (self.here("old"), self.here("new"));
        if self.condition.is_none() && !self.some_columns {
            return Ok([moved.to_owned(), moved.to_owned(), new]);
        }
        let left = format!("({moved} or not {new}) and {old}");
        let entered = format!("({moved} or not {old})");
        let told = match self.some_columns {
            true => format!(
                "{new} and ({entered} or {} is not {})",
                self.image("old")?,
                self.image("new")?
            ),
            false => new,
        };
        Ok([left, entered, told])
    }
}
