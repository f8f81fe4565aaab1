//! From a URL to a store: the one place that knows which databases there are.

use std::fmt;
use std::sync::Arc;

use changefeed_core::{Error, Kind, MigrationStep, Result, Store};
use changefeed_engine::Changefeed;

/// A database that a URL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// `sqlite:PATH`
    Sqlite {
        /// The file.
        path: String,
    },
    /// `postgres://user:password@host:port/database`
    Postgres {
        /// The whole URL.
        url: String,
    },
    /// `sqlserver://user:password@host:port/database`, or an ADO connection string
    SqlServer {
        /// The whole of it.
        url: String,
    },
}

const FORMS: &str = "use sqlite:PATH, postgres://user:password@host/database or \
     sqlserver://user:password@host/database";

impl Backend {
    /// Reads a database URL.
    pub fn parse(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(Error::invalid("the SQLite URL names no file")
                    .advise("use sqlite:PATH, for example sqlite:changefeed.db"));
            }
            return Ok(Backend::Sqlite {
                path: path.to_owned(),
            });
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Backend::Postgres {
                url: url.to_owned(),
            });
        }
        let is_url = url.starts_with("sqlserver://") || url.starts_with("mssql://");
        if is_url || is_ado(url) {
            return Ok(Backend::SqlServer {
                url: url.to_owned(),
            });
        }
        // Not repeated in the message: it may hold a password.
        Err(Error::invalid("this is not a database URL").advise(FORMS))
    }

    /// Refuses a database that would have to be created first. Opening creates an SQLite file,
    /// which would hide a mistyped name.
    pub fn require_existing(&self) -> Result<()> {
        match self {
            Backend::Sqlite { path } if !std::path::Path::new(path).exists() => Err(
                Error::not_found(format!("there is no database file '{path}'"))
                    .advise("`changefeed migrate` creates it"),
            ),
            _ => Ok(()),
        }
    }

    /// The steps to the current version of our tables.
    pub fn migrations(&self) -> Result<&'static [MigrationStep]> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite { .. } => changefeed_sqlite::MIGRATIONS,
            #[cfg(feature = "postgres")]
            Backend::Postgres { .. } => changefeed_postgres::MIGRATIONS,
            #[cfg(feature = "sqlserver")]
            Backend::SqlServer { .. } => changefeed_sqlserver::MIGRATIONS,
            #[allow(
                unreachable_patterns,
                reason = "with all features there is nothing left"
            )]
            other => return Err(other.missing()),
        })
    }

    /// The SQL that installs our tables, for people who run it themselves.
    pub fn migration_script(&self) -> Result<String> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite { .. } => changefeed_sqlite::migration_script(),
            #[cfg(feature = "postgres")]
            Backend::Postgres { .. } => changefeed_postgres::migration_script(),
            #[cfg(feature = "sqlserver")]
            Backend::SqlServer { .. } => changefeed_sqlserver::migration_script(),
            #[allow(
                unreachable_patterns,
                reason = "with all features there is nothing left"
            )]
            other => return Err(other.missing()),
        })
    }

    /// Opens the database.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(match self {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite { path } => Arc::new(changefeed_sqlite::SqliteStore::open(path).await?),
            #[cfg(feature = "postgres")]
            Backend::Postgres { url } => {
                Arc::new(changefeed_postgres::PostgresStore::connect(url).await?)
            }
            #[cfg(feature = "sqlserver")]
            Backend::SqlServer { url } => {
                Arc::new(changefeed_sqlserver::SqlServerStore::connect(url).await?)
            }
            #[allow(
                unreachable_patterns,
                reason = "with all features there is nothing left"
            )]
            other => return Err(other.missing()),
        })
    }

    /// For a database that this program was built without.
    #[allow(dead_code, reason = "with all features there is nothing missing")]
    fn missing(&self) -> Error {
        let (database, feature) = match self {
            Backend::Sqlite { .. } => ("SQLite", "sqlite"),
            Backend::Postgres { .. } => ("PostgreSQL", "postgres"),
            Backend::SqlServer { .. } => ("SQL Server", "sqlserver"),
        };
        Error::new(
            Kind::Unsupported,
            format!("this program was built without {database}"),
        )
        .advise(format!(
            "build it with the feature `{feature}` of the crate changefeed"
        ))
    }
}

/// Whether a text is a connection string of SQL Server's drivers: it begins with the server.
fn is_ado(text: &str) -> bool {
    let first = text.split('=').next().unwrap_or_default().trim();
    ["server", "data source", "addr", "address"]
        .iter()
        .any(|key| first.eq_ignore_ascii_case(key))
}

/// Where it is, for people: the kind, the host and the database, and nothing of user or password.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Sqlite { path } => write!(f, "sqlite:{path}"),
            #[cfg(feature = "postgres")]
            Backend::Postgres { url } => f.write_str(&changefeed_postgres::place(url)),
            #[cfg(not(feature = "postgres"))]
            Backend::Postgres { .. } => f.write_str("postgres"),
            #[cfg(feature = "sqlserver")]
            Backend::SqlServer { url } => match changefeed_sqlserver::Target::parse(url) {
                Ok(target) => f.write_str(&target.place()),
                Err(_) => f.write_str("sqlserver"),
            },
            #[cfg(not(feature = "sqlserver"))]
            Backend::SqlServer { .. } => f.write_str("sqlserver"),
        }
    }
}

/// Connects to the database that a URL names. Does not install anything: see
/// [`Changefeed::migrate`].
pub async fn connect(url: &str) -> Result<Changefeed> {
    Ok(Changefeed::new(Backend::parse(url)?.open().await?))
}

/// The SQL that installs our tables in the kind of database that a URL names. Needs no
/// connection, so the kind alone will do: `postgres:`, `sqlserver:` or `sqlite:`.
pub fn migration_script(url: &str) -> Result<String> {
    let backend = match url {
        "postgres:" | "postgresql:" => Backend::Postgres { url: url.into() },
        "sqlite:" => Backend::Sqlite { path: url.into() },
        "sqlserver:" | "mssql:" => Backend::SqlServer { url: url.into() },
        url => Backend::parse(url)?,
    };
    backend.migration_script()
}

#[cfg(all(test, feature = "postgres", feature = "sqlserver"))]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_shown_without_credentials() {
        for (url, shown) in [
            ("sqlite:changefeed.db", "sqlite:changefeed.db"),
            (
                "postgres://me:x@db:5432/shop?password=SEKRET",
                "postgres://db:5432/shop",
            ),
            ("postgres://me:s@cret@db:5432/shop", "postgres"),
            ("postgres://me:SEKRET#x@db/shop", "postgres://db:5432/shop"),
            ("postgres://me:SEK?RET#x@db/shop", "postgres://db:5432/shop"),
            (
                "postgres://me:x@db/shop?sslmode=verify-full",
                "postgres://db:5432/shop",
            ),
            ("postgres:///shop", "postgres"),
            ("postgres://me:SEK/RET@db/shop", "postgres://db:5432/shop"),
            ("sqlserver://sa:SEKRET@db/shop", "sqlserver://db:1433/shop"),
            (
                "Server=db,1500;Database=d;User Id=u;Password=SEKRET",
                "sqlserver://db:1500/d",
            ),
            ("sqlserver://sa:SEK/RET@db/shop", "sqlserver"),
        ] {
            let seen = Backend::parse(url).unwrap().to_string();
            assert!(!seen.contains("SEK") && !seen.contains("cret"), "{seen}");
            assert_eq!(seen, shown, "{url}");
        }
    }

    #[test]
    fn a_url_names_its_database() {
        assert_eq!(
            Backend::parse("sqlite:a/b.db").unwrap(),
            Backend::Sqlite {
                path: "a/b.db".into()
            }
        );
        assert_eq!(
            Backend::parse("sqlite:///tmp/b.db").unwrap(),
            Backend::Sqlite {
                path: "/tmp/b.db".into()
            }
        );
        assert!(matches!(
            Backend::parse("postgresql://h/d"),
            Ok(Backend::Postgres { .. })
        ));
        assert!(!is_ado("sqlite:server=x.db"));
        for url in [
            "Data Source=x;",
            "sqlserver://u:p@h/d",
            "Server=h;Database=d;User Id=u;Password=p",
        ] {
            assert!(matches!(Backend::parse(url), Ok(Backend::SqlServer { .. })));
        }
    }

    #[test]
    fn a_wrong_url_is_one_sentence_without_its_secrets() {
        for bad in ["", "orders.db", "mysql://root:secret@h/d", "sqlite:"] {
            let error = Backend::parse(bad).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(!format!("{error:?}").contains("secret"));
        }
    }
}
