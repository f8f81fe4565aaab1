//! Bearer tokens of the HTTP interface.

use async_trait::async_trait;
use changefeed_core::{
    AccessStore, AccessToken, NewToken, Result, Scope, TokenDigest, TokenId, words,
};
use rusqlite::{Transaction, params};

use crate::SqliteStore;
use crate::error::Explain;

#[async_trait]
impl AccessStore for SqliteStore {
    async fn tokens(&self) -> Result<Vec<AccessToken>> {
        self.reading(tokens).await
    }

    async fn create_token(&self, new: &NewToken) -> Result<AccessToken> {
        new.validate()?;
        let new = new.clone();
        self.writing(move |tx| {
            let millis = new
                .expires_after
                .map(|after| i64::try_from(after.as_millis()).unwrap_or(i64::MAX).min(FOREVER));
            tx.execute(
                "insert into changefeed_access_token \
                   (token_id, name, digest, scopes, created_at, expires_at) \
                 select ?1, ?2, ?3, ?4, now.ms, now.ms + ?5 \
                   from (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) as ms) now",
                params![
                    new.id.as_str(),
                    new.name,
                    new.digest.0.as_slice(),
                    Scope::list(&new.scopes),
                    millis
                ],
            )
            .explained()?;
            tokens(tx)?
                .into_iter()
                .find(|token| token.id == new.id)
                .ok_or_else(words::token_gone)
        })
        .await
    }

    async fn revoke_token(&self, id: &TokenId) -> Result<bool> {
        let id = id.clone();
        self.writing(move |tx| {
            let revoked = tx
                .execute(
                    "update changefeed_access_token \
                     set revoked_at = cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
                     where token_id = ?1 and revoked_at is null",
                    [id.as_str()],
                )
                .explained()?;
            Ok(revoked > 0)
        })
        .await
    }
}

/// A thousand years: what is added to a time must stay a time.
const FOREVER: i64 = 1000 * 365 * 86_400_000;

fn tokens(tx: &Transaction<'_>) -> Result<Vec<AccessToken>> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/tokens.sql"))
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    let mut tokens = Vec::new();
    while let Some(row) = rows.next().explained()? {
        let id: String = row.get("token_id").explained()?;
        let scopes: String = row.get("scopes").explained()?;
        tokens.push(AccessToken {
            id: id.parse()?,
            name: row.get("name").explained()?,
            digest: TokenDigest(row.get("digest").explained()?),
            scopes: Scope::parse_list(&scopes)?,
            created_at: row.get("created_at").explained()?,
            expires_at: row.get("expires_at").explained()?,
            expired: row.get("expired").explained()?,
            revoked_at: row.get("revoked_at").explained()?,
        });
    }
    Ok(tokens)
}
