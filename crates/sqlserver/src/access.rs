//! Bearer tokens of the HTTP interface.

use changefeed_core::{AccessToken, NewToken, Result, Scope, TokenDigest, TokenId, words};
use tiberius::Row;

use crate::row::Cells;
use crate::session::Session;

/// A thousand years: what is added to a time must stay a time.
const FOREVER: u64 = 1000 * 365 * 86_400;

impl Session {
    pub(crate) async fn tokens(&mut self) -> Result<Vec<AccessToken>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/tokens.sql"), &[])
            .await?;
        rows.iter().map(token).collect()
    }

    pub(crate) async fn create_token(&mut self, new: &NewToken) -> Result<AccessToken> {
        new.validate()?;
        let connection = &mut *self.connection;
        let seconds = new
            .expires_after
            .map(|after| i32::try_from(after.as_secs().min(FOREVER)).unwrap_or(i32::MAX));
        let milliseconds = new
            .expires_after
            .map_or(0, |after| i32::try_from(after.subsec_millis()).unwrap_or(0));
        connection
            .execute(
                "insert into changefeed.access_token (token_id, name, digest, scopes, expires_at) \
                 values (@P1, @P2, @P3, @P4, \
                 dateadd(millisecond, @P6, dateadd(second, @P5, sysutcdatetime())))",
                &[
                    &new.id.as_str(),
                    &new.name,
                    &new.digest.0.as_slice(),
                    &Scope::list(&new.scopes),
                    &seconds,
                    &milliseconds,
                ],
            )
            .await?;
        self.tokens()
            .await?
            .into_iter()
            .find(|token| token.id == new.id)
            .ok_or_else(words::token_gone)
    }

    pub(crate) async fn revoke_token(&mut self, id: &TokenId) -> Result<bool> {
        let connection = &mut *self.connection;
        let revoked = connection
            .execute(
                "update changefeed.access_token set revoked_at = sysutcdatetime() \
                 where token_id = @P1 and revoked_at is null",
                &[&id.as_str()],
            )
            .await?;
        Ok(revoked > 0)
    }
}

fn token(row: &Row) -> Result<AccessToken> {
    let digest = row.take::<&[u8]>("digest")?;
    Ok(AccessToken {
        id: row.text("token_id")?.parse()?,
        name: row.text("name")?,
        digest: TokenDigest(digest.try_into().map_err(|_| words::token_damaged())?),
        scopes: Scope::parse_list(row.take("scopes")?)?,
        created_at: row.text("created_at")?,
        expires_at: row.maybe_text("expires_at")?,
        expired: row.says("expired")?,
        revoked_at: row.maybe_text("revoked_at")?,
    })
}
