//! Bearer tokens of the HTTP interface.

use changefeed_core::{AccessToken, NewToken, Result, Scope, TokenDigest, TokenId, words};
use tokio_postgres::Row;

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn tokens(&self) -> Result<Vec<AccessToken>> {
        let client = &**self;
        let statement = client
            .prepare_cached(include_str!("sql/tokens.sql"))
            .await
            .map_err(db)?;
        let rows = client.query(&statement, &[]).await.map_err(db)?;
        rows.iter().map(token).collect()
    }

    pub(crate) async fn create_token(&self, new: &NewToken) -> Result<AccessToken> {
        new.validate()?;
        let client = &**self;
        let milliseconds = new.expires_after.map(|after| {
            i64::try_from(after.as_millis())
                .unwrap_or(i64::MAX)
                .min(FOREVER)
        });
        client
            .execute(
                "insert into changefeed.access_token (token_id, name, digest, scopes, expires_at) \
                 values ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 millisecond')",
                &[
                    &new.id.as_str(),
                    &new.name,
                    &new.digest.0.as_slice(),
                    &Scope::list(&new.scopes),
                    &milliseconds.map(|ms| ms as f64),
                ],
            )
            .await
            .map_err(db)?;
        self.tokens()
            .await?
            .into_iter()
            .find(|token| token.id == new.id)
            .ok_or_else(words::token_gone)
    }

    pub(crate) async fn revoke_token(&self, id: &TokenId) -> Result<bool> {
        let client = &**self;
        let revoked = client
            .execute(
                "update changefeed.access_token set revoked_at = clock_timestamp() \
                 where token_id = $1 and revoked_at is null",
                &[&id.as_str()],
            )
            .await
            .map_err(db)?;
        Ok(revoked > 0)
    }
}

/// A thousand years: what is added to a time must stay a time.
const FOREVER: i64 = 1000 * 365 * 86_400_000;

fn token(row: &Row) -> Result<AccessToken> {
    let digest: Vec<u8> = row.take("digest")?;
    Ok(AccessToken {
        id: row.take::<String>("token_id")?.parse()?,
        name: row.take("name")?,
        digest: TokenDigest(digest.try_into().map_err(|_| words::token_damaged())?),
        scopes: Scope::parse_list(row.take("scopes")?)?,
        created_at: row.take("created_at")?,
        expires_at: row.take("expires_at")?,
        expired: row.take("expired")?,
        revoked_at: row.take("revoked_at")?,
    })
}
