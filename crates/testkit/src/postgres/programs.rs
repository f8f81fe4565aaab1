//! Where PostgreSQL's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

static PROGRAMS: LazyLock<Option<PathBuf>> = LazyLock::new(find);

/// The directory of the server's programs: the one named by `CHANGEFEED_TEST_POSTGRES_BIN`, else
/// the one in the PATH, else the newest one installed.
pub fn programs() -> &'static Path {
    PROGRAMS.as_deref().expect(
        "PostgreSQL's server programs are not installed (Debian: apt-get install postgresql)",
    )
}

/// A command of the server's version (`psql`, `pg_dump`, …).
pub fn program(name: &str) -> Command {
    Command::new(programs().join(name))
}

fn find() -> Option<PathBuf> {
    let named = std::env::var_os("CHANGEFEED_TEST_POSTGRES_BIN").map(PathBuf::from);
    let in_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
        // Programs in the PATH are often links into the directory that has all of them.
        .filter_map(|dir| {
            dir.join("initdb")
                .canonicalize()
                .ok()?
                .parent()
                .map(Path::to_owned)
        });
    named
        .into_iter()
        .chain(in_path)
        .chain(installed())
        .find(|dir| complete(dir))
}

fn complete(dir: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres"]
        .iter()
        .all(|name| dir.join(name).is_file())
}

/// Where packages put them, newest first.
fn installed() -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = [
        "/usr/lib/postgresql",
        "/usr",
        "/opt/homebrew/opt",
        "/usr/local/opt",
    ]
    .iter()
    .filter_map(|base| std::fs::read_dir(base).ok())
    .flatten()
    .filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_str()?.to_owned();
        let version = name
            .trim_start_matches("postgresql")
            .trim_start_matches("pgsql")
            .trim_start_matches(['-', '@'])
            .parse()
            .ok()?;
        Some((version, entry.path().join("bin")))
    })
    .collect();
    found.sort();
    found.into_iter().rev().map(|(_, dir)| dir).collect()
}
