//! SQL Server, and a server that speaks its language. Babelfish for PostgreSQL is supported as a
//! platform of its own: where it cannot run what SQL Server runs, the SQL says so line by line.

use std::borrow::Cow;

/// Which server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// SQL Server 2017 or later, Azure SQL Database, Managed Instance.
    SqlServer,
    /// Babelfish for PostgreSQL.
    Babelfish,
}

/// Ends a line that only SQL Server runs.
const SQL_SERVER: &str = "--@sqlserver";
/// Begins a line that only Babelfish runs; to SQL Server it is a comment.
const BABELFISH: &str = "--@babelfish ";

/// Functions of SQL Server's that Babelfish has, but that do not do the same there, and ours that
/// do (`migrations/0001/capture.sql`).
const MISTAKEN: [(&str, &str); 2] = [
    ("string_escape(", "changefeed.json_escape("),
    ("json_value(", "changefeed.json_text("),
];

impl Platform {
    /// A script of ours as this platform runs it. What is written in the files is what SQL Server
    /// runs.
    pub fn script(self, sql: &str) -> Cow<'_, str> {
        if self == Platform::SqlServer {
            return Cow::Borrowed(sql);
        }
        let mut adapted = String::with_capacity(sql.len());
        for line in sql.lines() {
            if line.trim_end().ends_with(SQL_SERVER) {
                continue;
            }
            match line.trim_start().strip_prefix(BABELFISH) {
                Some(own) => adapted.push_str(own),
                None => adapted.push_str(line),
            }
            adapted.push('\n');
        }
        Cow::Owned(adapted)
    }

    /// A statement of ours as this platform runs it.
    pub fn statement(self, sql: &str) -> Cow<'_, str> {
        let mut sql = self.script(sql);
        if self == Platform::Babelfish {
            for (theirs, ours) in MISTAKEN {
                sql = Cow::Owned(replaced(&sql, theirs, ours));
            }
        }
        sql
    }

    /// Whether the server has change tracking (`CHANGETABLE`).
    pub fn has_change_tracking(self) -> bool {
        self == Platform::SqlServer
    }
}

/// Replaces the calls of a function, where its name is not the end of another.
fn replaced(sql: &str, theirs: &str, ours: &str) -> String {
    let mut out = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some(at) = rest.find(theirs) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let part_of_a_name = out
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '"' | ']'));
        out.push_str(if part_of_a_name { theirs } else { ours });
        rest = &after[theirs.len()..];
    }
    out.push_str(rest);
    out
}

/// The batches of a script, which end at lines that say `GO`: some statements must be alone.
pub(crate) fn batches(script: &str) -> Vec<String> {
    let mut batches = vec![String::new()];
    for line in script.lines() {
        if line.trim().eq_ignore_ascii_case("go") {
            batches.push(String::new());
        } else if let Some(batch) = batches.last_mut() {
            batch.push_str(line);
            batch.push('\n');
        }
    }
    batches.retain(|batch| {
        batch
            .lines()
            .any(|line| !line.trim().is_empty() && !line.trim_start().starts_with("--"))
    });
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_platform_gets_its_own_lines() {
        let sql = "a\n  b --@sqlserver\n  --@babelfish c\nd\n";
        assert_eq!(Platform::SqlServer.script(sql), sql);
        assert_eq!(Platform::Babelfish.script(sql), "a\nc\nd\n");
    }

    #[test]
    fn functions_that_are_mistaken_are_replaced_by_ours() {
        let sql = "select json_value(a, '$') + string_escape(x.json_value(b))";
        assert_eq!(Platform::SqlServer.statement(sql), sql);
        assert_eq!(
            Platform::Babelfish.statement(sql),
            "select changefeed.json_text(a, '$') + changefeed.json_escape(x.json_value(b))\n"
        );
    }

    #[test]
    fn a_script_is_cut_at_go_and_comments_alone_are_no_batch() {
        assert_eq!(
            batches("-- hello\nGO\nselect 1\ngo\n\n  GO\n"),
            ["select 1\n"]
        );
    }
}
