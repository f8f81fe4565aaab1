//! The columns that updates have changed, where some function wants to know them: noted by the
//! trigger by their numbers, united when changes are moved, and told by their names of today. What is
//! made here is empty where nobody wants to know.

use crate::quote;
use crate::source::Table;

/// Whether the columns that were changed are noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Columns {
    Noted,
    Ignored,
}

impl Columns {
    pub(crate) fn new(noted: bool) -> Self {
        match noted {
            true => Columns::Noted,
            false => Columns::Ignored,
        }
    }

    fn either<T>(self, noted: T, ignored: T) -> T {
        match self {
            Columns::Noted => noted,
            Columns::Ignored => ignored,
        }
    }

    /// What the trigger does about an update. Compared by their bytes, because the equality of
    /// somebody's own type is somebody's own function. Where a row is not made of exactly these
    /// columns in this order, the table was altered, and any of them may have changed: the row itself
    /// tells that, while the catalogue may be older in the writer's snapshot.
    pub(crate) fn note(self, table: &Table) -> String {
        if self == Columns::Ignored {
            return String::new();
        }
        let each = |make: &dyn Fn(&str, i16) -> String| -> Vec<String> {
            let columns = table.columns.iter();
            columns
                .map(|c| make(&quote::identifier(&c.name), c.place))
                .collect()
        };
        let cases = each(&|name, place| {
            format!(
                "case when not pg_catalog.record_image_eq(row(old.{name}), row(new.{name})) \
                 then '{place}' end"
            )
        });
        // In groups: a function takes no more than a hundred arguments.
        let groups: Vec<String> = cases
            .chunks(40)
            .map(|group| format!("pg_catalog.concat_ws(',', {})", group.join(", ")))
            .collect();
        let columns = groups.join(" operator(pg_catalog.||) ',' operator(pg_catalog.||) ");
        let whole = |row: &str| {
            let values = each(&|name, _| format!("{row}.{name}")).join(", ");
            format!("pg_catalog.record_image_eq(row({values}), {row})")
        };
        format!(
            "begin if {} and {} then changed := {columns}; end if; \
             exception when others then changed := null; end;",
            whole("old"),
            whole("new")
        )
    }

    /// In `watch_move.sql`: of a noted change, of all changes of a key (or null), as numbers.
    pub(crate) fn moved(self) -> [(&'static str, &'static str); 3] {
        [
            (
                "log_columns",
                self.either("l._changefeed_columns", "null::text"),
            ),
            (
                "net_columns",
                self.either(
                    "case when bool_and(s.columns is not null) then string_agg(s.columns, ',') end",
                    "null::text",
                ),
            ),
            (
                "numbered_columns",
                self.either(
                    "case when n.columns is not null then array(select distinct c::smallint \
                     from unnest(string_to_array(n.columns, ',')) c where c <> '') end",
                    "null::smallint[]",
                ),
            ),
        ]
    }

    /// In `watch_move_function.sql`. A change that is moved late is no reason to hand a row over
    /// again, except for its columns.
    pub(crate) fn folded(self) -> [(&'static str, &'static str); 2] {
        [
            (
                "older_operation",
                self.either(
                    "case when q._changefeed_lease_generation is not null \
                          and q._changefeed_operation < 2 \
                     then coalesce(q._changefeed_newer_operation, 1) \
                     else q._changefeed_newer_operation end",
                    "q._changefeed_newer_operation",
                ),
            ),
            (
                "fold_columns",
                self.either(
                    "_changefeed_newer_columns = case \
                         when q._changefeed_lease_generation is null then null \
                         when q._changefeed_newer_operation is null then n.changed \
                         when q._changefeed_newer_columns is not null and n.changed is not null \
                         then array(select distinct c \
                                    from unnest(q._changefeed_newer_columns || n.changed) c) end, \
                     _changefeed_columns = case \
                         when q._changefeed_lease_generation is not null then q._changefeed_columns \
                         when q._changefeed_columns is not null and n.changed is not null \
                              and (q._changefeed_newer_operation is null \
                                   or q._changefeed_newer_columns is not null) \
                         then array(select distinct c from unnest(q._changefeed_columns || n.changed \
                                    || coalesce(q._changefeed_newer_columns, '{}')) c) end",
                    "_changefeed_columns = null, _changefeed_newer_columns = null",
                ),
            ),
        ]
    }

    /// In `watch_rows.sql`: their names, as JSON.
    pub(crate) fn named(self, table: &Table) -> String {
        match self {
            Columns::Ignored => "null".to_owned(),
            Columns::Noted => format!(
                "case when b.columns is not null then coalesce( \
                   (select json_agg(a.attname order by a.attnum)::text from pg_attribute a \
                    where a.attrelid = {} and a.attnum = any(b.columns) and not a.attisdropped), \
                   '[]') end",
                table.oid
            ),
        }
    }
}
