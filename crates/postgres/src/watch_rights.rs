//! What a database user must be allowed to do to work on a watch, and to make one.

use changefeed_core::{Error, Kind, Result};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::quote;
use crate::row::Cells;

/// Refuses what would fail later, and says what grants it.
pub(crate) async fn check(client: &impl GenericClient, table_id: i64) -> Result<()> {
    let missing: Vec<String> = client
        .query(
            include_str!("sql/watch_rights.sql"),
            &[&table_id.to_string()],
        )
        .await
        .map_err(db)?
        .iter()
        .map(|row| row.take(0))
        .collect::<Result<_>>()?;
    if missing.is_empty() {
        return Ok(());
    }
    let who = Who::ask(client).await?;
    Err(Error::new(
        Kind::Permission,
        format!(
            "the database user lacks rights that a watch needs: {}",
            missing.join(", ")
        ),
    )
    .advise(format!(
        "as {}: select changefeed.grant_worker({})",
        who.owner,
        quote::literal(&who.user)
    )))
}

/// Refuses to make anything in our schema as somebody who does not own it: whoever makes something
/// there decides what others run.
pub(crate) async fn may_make(client: &impl GenericClient) -> Result<()> {
    let who = Who::ask(client).await?;
    if who.owns {
        return Ok(());
    }
    Err(Error::new(
        Kind::Permission,
        format!(
            "only {}, who owns the schema changefeed, can make watches",
            who.owner
        ),
    )
    .advise(format!(
        "run `changefeed watch create` as {0} or as a member of it, and \
         select changefeed.grant_worker({1}) for this user to work on it",
        who.owner,
        quote::literal(&who.user)
    )))
}

/// The database user, and the owner of our schema.
struct Who {
    /// As SQL.
    user: String,
    owner: String,
    /// Whether the user is the owner, a member of it, or a superuser.
    owns: bool,
}

impl Who {
    async fn ask(client: &impl GenericClient) -> Result<Who> {
        let row = client
            .query_one(
                "select quote_ident(current_user), n.nspowner::regrole::text, \
                 pg_has_role(n.nspowner, 'usage') from pg_namespace n where n.nspname = 'changefeed'",
                &[],
            )
            .await
            .map_err(db)?;
        Ok(Who {
            user: row.take(0)?,
            owner: row.take(1)?,
            owns: row.take(2)?,
        })
    }
}
