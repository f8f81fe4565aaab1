//! Moving committed changes to the backlogs of all functions that watch a table: from where our trigger
//! notes them, or from the server's change tracking.

use changefeed_core::{Result, fill};

use super::{Backlog, send};
use crate::connection::Connection;
use crate::tracking::{Way, leases_name, tracked_in};
use crate::watch_key::{names, numbered, numbered_types, same, same_numbered};

/// Changes that are moved at a time: many enough to be cheap, few enough not to keep others from the
/// table's lock for long.
const CHUNK: &str = "10000";
/// The same of change tracking, which reads and sorts all that it knows for every chunk.
const TRACKED_CHUNK: &str = "200000";

impl Backlog {
    /// Moves everything, within a transaction that holds the table's lock where the changes are noted
    /// by our trigger.
    pub(crate) async fn move_all(&self, connection: &mut Connection) -> Result<()> {
        send(connection, &self.move_all_sql()?).await?;
        Ok(())
    }

    pub(crate) fn move_all_sql(&self) -> Result<String> {
        Ok(format!(
            "declare @stale bit = 0, @missed nvarchar(400), @base bigint;\n{}",
            self.move_sql()?
        ))
    }

    pub(super) fn move_sql(&self) -> Result<String> {
        let key = &self.tracked.table.key;
        let (chunk, read, claim, unclaimed, take) = match self.tracked.way {
            Way::Trigger => (CHUNK, String::new(), "", "", self.noted_sql()?),
            Way::Native => (
                TRACKED_CHUNK,
                self.tracked_sql()?,
                ", tracked_version = @until, tracked_in = isnull(@noted, tracked_in)",
                " and tracked_version = @since and isnull(tracked_in, '') = isnull(@known, '')",
                missed_sql(self.tracked.id(), &self.functions)?,
            ),
        };
        fill(
            include_str!("../sql/watch_move.sql"),
            &[
                ("chunk", chunk),
                ("k_types", &numbered_types(key)),
                ("read_changes", &read),
                ("claim", claim),
                ("unclaimed", unclaimed),
                ("take_changes", &take),
                ("table_id", &self.table_id()),
                ("generation", &self.generation.to_string()),
                ("k", &numbered(key, "")),
                ("s_k", &numbered(key, "s.")),
                ("functions", &self.functions_sql()?),
            ],
        )
    }

    fn noted_sql(&self) -> Result<String> {
        let key = &self.tracked.table.key;
        fill(
            include_str!("../sql/watch_changes_noted.sql"),
            &[
                ("chunk", CHUNK),
                ("log", &self.tracked.log()),
                ("table_id", &self.table_id()),
                ("k", &numbered(key, "")),
                ("l_keys", &names(key, "l.")),
            ],
        )
    }

    fn tracked_sql(&self) -> Result<String> {
        let key = &self.tracked.table.key;
        fill(
            include_str!("../sql/watch_changes_tracked.sql"),
            &[
                ("chunk", TRACKED_CHUNK),
                ("table", &self.tracked.table.sql),
                ("table_id", &self.table_id()),
                ("k", &numbered(key, "")),
                ("c_keys", &names(key, "c.")),
                ("tracked_columns", &self.tracked_columns()),
                ("tracked_in", &tracked_in(self.tracked.id())),
            ],
        )
    }

    /// The numbers of the columns that change tracking knows to be written, between commas; null where
    /// it does not know.
    fn tracked_columns(&self) -> String {
        if !self.tracked.columns {
            return "convert(varchar(max), null)".to_owned();
        }
        let cases: Vec<String> = self
            .tracked
            .table
            .columns
            .iter()
            .map(|column| {
                format!(
                    "case when change_tracking_is_column_in_mask({0}, c.SYS_CHANGE_COLUMNS) = 1 \
                     then '{0},' end",
                    column.place
                )
            })
            .collect();
        // In groups: CONCAT takes at most 254 arguments.
        let mut list = "convert(varchar(max), ',')".to_owned();
        for group in cases.chunks(200) {
            list = format!("concat({list}, {})", group.join(", "));
        }
        format!("case when c.SYS_CHANGE_COLUMNS is not null then {list} end")
    }

    fn functions_sql(&self) -> Result<String> {
        let key = &self.tracked.table.key;
        let table_id = self.tracked.id();
        let mut sql = String::new();
        for function in &self.functions {
            sql.push_str(&fill(
                include_str!("../sql/watch_move_function.sql"),
                &[
                    ("leases", &leases_name(function, i64::from(table_id))),
                    ("table_id", &table_id.to_string()),
                    ("same_key", &same_numbered(key, "q", "n")),
                    ("keys", &names(key, "")),
                    ("n_k", &numbered(key, "n.")),
                ],
            )?);
        }
        Ok(sql)
    }

    /// The function that counts what there is to do.
    pub(crate) fn count_sql(&self) -> Result<String> {
        let key = &self.tracked.table.key;
        let changes = match self.tracked.way {
            Way::Trigger => format!("changefeed.{} x with (readuncommitted)", self.tracked.log()),
            Way::Native => format!("changetable(changes {}, @since) x", self.tracked.table.sql),
        };
        fill(
            include_str!("../sql/watch_count.sql"),
            &[
                ("function_id", &self.function_id),
                ("table_id", &self.table_id()),
                ("leases", &self.leases),
                ("changes", &changes),
                ("x_keys", &names(key, "x.")),
                ("same_key", &same(key, "q", "x")),
            ],
        )
    }
}

/// Lets these functions of a table be handed all rows, if it is said in `@missed` what was missed.
pub(crate) fn missed_sql(table_id: i32, functions: &[String]) -> Result<String> {
    let functions: String = functions
        .iter()
        .map(|function| {
            fill(
                include_str!("../sql/watch_missed_function.sql"),
                &[
                    ("leases", &leases_name(function, i64::from(table_id))),
                    ("table_id", &table_id.to_string()),
                ],
            )
        })
        .collect::<Result<_>>()?;
    fill(
        include_str!("../sql/watch_missed.sql"),
        &[
            ("table_id", &table_id.to_string()),
            ("functions", functions.trim_end()),
        ],
    )
}
