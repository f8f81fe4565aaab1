//! Rows that a REPLACE removes.
//!
//! SQLite fires no delete trigger for them, unless `recursive_triggers` is on. So a trigger *before*
//! each row that is written notes the rows that are in its way (`stage.sql`), and a trigger *after* it
//! tells of those that have left (`settle.sql`). Feeds, event triggers and watches all use this; they
//! differ in what they note of a row and how they tell.
//!
//! Between the two, other statements may write to the same table: actions of foreign keys, and
//! triggers of the application that those fire. Therefore a noted row always says what was told of
//! it so far. An update or delete of it that is seen changes the note (`settle_follow.sql`,
//! `unstage.sql`); a note whose row is not in the table, or whose place another row has taken, is a row
//! that left unseen. Batches keep apart what belongs to which statement: each `before` puts one on
//! top, and each `after` takes the topmost. A statement that is skipped (`or ignore`, an upsert) leaves
//! its batch behind. It is known to be dead when no noted row has left the table, because nothing
//! else is written between the two triggers before the first row is removed. That holds only if
//! triggers of the application that run before the row is written run before ours: `arrange.rs`
//! sees to that.

use changefeed_core::Result;

use crate::quote::{self, fill};
use crate::source::{MAX_KEY, Table};

/// The owners of noted rows: feeds by their number, the others above.
pub(crate) const EVENTS: i64 = 1 << 32;
pub(crate) const WATCHES: i64 = 2 << 32;

/// The longest expression over a row that may stand in a trigger more than once.
const WIDE: usize = 200_000;

/// The names at the end of the triggers before a statement.
pub(crate) const BEFORE: [&str; 2] = ["stage_insert", "stage_update"];

/// Removed rows of a table, for one owner.
pub(crate) struct Staging<'a> {
    pub(crate) owner: i64,
    pub(crate) table: &'a Table,
    /// How a row called `changefeed_row` may be in the way of `new`.
    pub(crate) conflicts: Vec<String>,
    /// What is noted of a row: columns of `changefeed_staged`.
    pub(crate) payload: Vec<String>,
    /// The same as expressions over the row behind an alias.
    pub(crate) values: &'a dyn Fn(&str) -> Result<Vec<String>>,
    /// How many of these, from the first, tell that the row is another.
    pub(crate) telling: usize,
    /// The statement that tells of this owner's notes whose `live` is 2, in a trigger for the row behind
    /// this alias.
    pub(crate) tell: &'a dyn Fn(&str) -> Result<String>,
    /// The name of a trigger.
    pub(crate) name: &'a dyn Fn(&str) -> String,
}

/// A trigger as it should be.
pub(crate) struct Trigger {
    pub(crate) name: String,
    pub(crate) sql: String,
}

impl Trigger {
    /// Whether SQLite has it with these words. It keeps the text as it was given, but for the first
    /// two of them.
    pub(crate) fn is(&self, sql: &str) -> bool {
        let tail = |sql: &str| {
            sql.get("create trigger".len()..)
                .map(|s| s.trim().to_owned())
        };
        tail(sql) == tail(&self.sql)
    }
}

/// The row that is in the way by its rowid; none where rows are told apart by their primary key,
/// which is among the unique indexes.
pub(crate) fn by_place(table: &Table) -> Option<String> {
    let identity = table.identity();
    (identity != table.key).then(|| {
        let rowid: Vec<String> = identity
            .iter()
            .map(|c| quote::identifier(c))
            .map(|c| format!("changefeed_row.{c} = new.{c}"))
            .collect();
        rowid.join(" and ")
    })
}

impl Staging<'_> {
    /// Whether rows can be removed unseen, and be told apart.
    pub(crate) fn is_needed(&self) -> bool {
        !self.conflicts.is_empty() && (1..=MAX_KEY).contains(&self.table.identity().len())
    }

    /// The triggers before the statement.
    pub(crate) fn before(&self) -> Result<Vec<Trigger>> {
        if !self.is_needed() {
            return Ok(Vec::new());
        }
        let itself = same(&self.ids("changefeed_row"), &self.ids("old"));
        let others: Vec<String> = self
            .conflicts
            .iter()
            .map(|conflict| format!("{conflict} and not ({itself})"))
            .collect();
        Ok(vec![
            self.stage("insert", &self.conflicts)?,
            self.stage("update", &others)?,
        ])
    }

    /// The triggers after the statement. They have to be made after those that tell of the row that was
    /// written: SQLite runs the newest trigger first, so that the removed rows come before it.
    pub(crate) fn after(&self) -> Result<Vec<Trigger>> {
        if !self.is_needed() {
            return Ok(Vec::new());
        }
        let left = self.fill(include_str!("sql/settle_left.sql"), &[])?;
        let left = left.trim_end();
        let follow = self.fill(include_str!("sql/settle_follow.sql"), &[])?;
        // A note about the place of the row itself is about another row if it says otherwise.
        let left_by_update = self.fill(
            "case when {old_is_staged} then {differs} else {left} end",
            &[
                (
                    "differs",
                    &format!("({})", self.says("old", "is not", " or ")?),
                ),
                ("left", left),
            ],
        )?;
        Ok(vec![
            self.settle("insert", left, "")?,
            self.settle("update", &left_by_update, follow.trim_end())?,
            Trigger {
                name: (self.name)("settle_delete"),
                sql: self.fill(
                    include_str!("sql/unstage.sql"),
                    &[
                        ("trigger", &quote::identifier(&(self.name)("settle_delete"))),
                        ("tell", (self.tell)("old")?.trim_end()),
                    ],
                )?,
            },
        ])
    }

    /// What keeps the delete trigger from telling again of a row that was told to be gone: actions of
    /// foreign keys run before it, when the row has already left.
    pub(crate) fn untold(&self) -> Result<String> {
        if !self.is_needed() {
            return Ok(String::new());
        }
        self.fill(
            "when not exists (select 1 from changefeed_staged\n                  \
             where owner = {owner} and live = 0 and {old_is_staged})\n",
            &[],
        )
    }

    fn stage(&self, event: &str, conflicts: &[String]) -> Result<Trigger> {
        let table = self.table.sql();
        let any: Vec<String> = conflicts
            .iter()
            .map(|c| format!("exists (select 1 from {table} as changefeed_row where {c})"))
            .collect();
        let all: Vec<String> = conflicts.iter().map(|c| format!("({c})")).collect();
        let name = (self.name)(&format!("stage_{event}"));
        let sql = self.fill(
            include_str!("sql/stage.sql"),
            &[
                ("trigger", &quote::identifier(&name)),
                ("event", event),
                ("any_conflict", &any.join(" or ")),
                ("conflicts", &all.join(" or ")),
            ],
        )?;
        Ok(Trigger { name, sql })
    }

    fn settle(&self, event: &str, left: &str, follow: &str) -> Result<Trigger> {
        let name = (self.name)(&format!("settle_{event}"));
        let sql = self.fill(
            include_str!("sql/settle.sql"),
            &[
                ("trigger", &quote::identifier(&name)),
                ("event", event),
                ("follow", follow),
                ("tell", (self.tell)("new")?.trim_end()),
                ("left", left),
            ],
        )?;
        Ok(Trigger { name, sql })
    }

    fn fill(&self, template: &str, more: &[(&str, &str)]) -> Result<String> {
        let row = self.ids("changefeed_row");
        let common = [
            ("owner", self.owner.to_string()),
            ("table", self.table.sql()),
            ("ids", self.staged("").join(", ")),
            ("payload", self.payload.join(", ")),
            ("row_ids", row.join(", ")),
            ("new_ids", self.ids("new").join(", ")),
            ("row_payload", (self.values)("changefeed_row")?.join(", ")),
            ("new_payload", (self.values)("new")?.join(", ")),
            ("row_is_s", same(&row, &self.staged("s."))),
            (
                "row_is_staged",
                same(&row, &self.staged("changefeed_staged.")),
            ),
            (
                "old_is_staged",
                same(&self.ids("old"), &self.staged("changefeed_staged.")),
            ),
            (
                "new_is_staged",
                same(&self.ids("new"), &self.staged("changefeed_staged.")),
            ),
            ("staged_says_old", self.says("old", "is", " and ")?),
            ("s_says_row", self.s_says_row()?),
        ];
        let mut places: Vec<(&str, &str)> = common
            .iter()
            .map(|(place, value)| (*place, value.as_str()))
            .collect();
        places.extend_from_slice(more);
        fill(template, &places)
    }

    /// Whether a note says what its row says. A very wide row goes by its place alone: the statement
    /// would be longer than SQLite takes.
    fn s_says_row(&self) -> Result<String> {
        let says = self.noted("s", "changefeed_row", "is", " and ")?;
        Ok(if says.len() > WIDE {
            "1".to_owned()
        } else {
            says
        })
    }

    fn says(&self, alias: &str, operator: &str, joiner: &str) -> Result<String> {
        self.noted("changefeed_staged", alias, operator, joiner)
    }

    fn noted(&self, note: &str, alias: &str, operator: &str, joiner: &str) -> Result<String> {
        let noted: Vec<String> = self
            .payload
            .iter()
            .take(self.telling)
            .map(|column| format!("{note}.{column}"))
            .collect();
        let values = (self.values)(alias)?;
        Ok(pairs(&noted, operator, &values, joiner))
    }

    fn staged(&self, prefix: &str) -> Vec<String> {
        (1..=self.table.identity().len())
            .map(|n| format!("{prefix}id{n}"))
            .collect()
    }

    fn ids(&self, alias: &str) -> Vec<String> {
        self.table
            .identity()
            .iter()
            .map(|c| format!("{alias}.{}", quote::identifier(c)))
            .collect()
    }
}

/// `a1 = b1 and a2 = b2`, with any operator and joiner.
pub(crate) fn pairs(left: &[String], operator: &str, right: &[String], joiner: &str) -> String {
    left.iter()
        .zip(right)
        .map(|(l, r)| format!("{l} {operator} {r}"))
        .collect::<Vec<_>>()
        .join(joiner)
}

/// `a1 is b1 and a2 is b2`. The column of the table stands first, because its collation counts.
fn same(left: &[String], right: &[String]) -> String {
    pairs(left, "is", right, " and ")
}
