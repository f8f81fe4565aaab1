//! SQL Server, and a server that speaks its language. Babelfish for PostgreSQL is supported as a
//! platform of its own: where it cannot run what SQL Server runs, the SQL says so line by line.

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

impl Platform {
    /// Our SQL as this platform runs it. What is written in the files is what SQL Server runs.
    pub fn adapt(self, sql: &str) -> String {
        if self == Platform::SqlServer {
            return sql.to_owned();
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
        adapted
    }

    /// Whether the server has change tracking (`CHANGETABLE`).
    pub fn has_change_tracking(self) -> bool {
        self == Platform::SqlServer
    }
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
        assert_eq!(Platform::SqlServer.adapt(sql), sql);
        assert_eq!(Platform::Babelfish.adapt(sql), "a\nc\nd\n");
    }

    #[test]
    fn a_script_is_cut_at_go_and_comments_alone_are_no_batch() {
        assert_eq!(
            batches("-- hello\nGO\nselect 1\ngo\n\n  GO\n"),
            ["select 1\n"]
        );
    }
}
