//! `changefeed token`

use changefeed::server::new_token;
use changefeed::{AccessToken, Error, Result};
use serde::Serialize;

use crate::args::Token;
use crate::connect;
use crate::output::Out;

#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    kept: &'a AccessToken,
    token: &'a str,
}

pub(crate) async fn run(database: &str, args: Token, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Token::Create {
            name,
            scope,
            expires_after,
        } => {
            let (new, token) = new_token(&name, scope, expires_after)?;
            let kept = db.store().create_token(&new).await?;
            if out.is_json() {
                return out.object(&Created {
                    kept: &kept,
                    token: &token,
                });
            }
            out.line(&token)?;
            out.line("keep it: it is not shown again, and the database holds only its hash")
        }
        Token::List => list(&db.store().tokens().await?, out),
        Token::Revoke { id } => {
            if !db.store().revoke_token(&id).await? {
                return Err(Error::not_found(format!(
                    "there is no valid token with the id '{id}'"
                ))
                .advise("`changefeed token list` shows the ids"));
            }
            out.say(format!(
                "token {id} is revoked; running servers notice within a second"
            ))
        }
    }
}

fn list(tokens: &[AccessToken], out: &mut Out) -> Result<()> {
    if out.is_json() {
        return tokens.iter().try_for_each(|t| out.object(t));
    }
    if tokens.is_empty() {
        return out.line("no tokens; `changefeed token create NAME --scope read` makes one");
    }
    let rows = tokens
        .iter()
        .map(|t| {
            let scopes: Vec<String> = t.scopes.iter().map(ToString::to_string).collect();
            let state = match (&t.revoked_at, &t.expires_at) {
                (Some(at), _) => format!("revoked {at}"),
                (None, Some(at)) if t.expired => format!("ended {at}"),
                (None, Some(at)) => format!("until {at}"),
                (None, None) => String::new(),
            };
            vec![
                t.id.to_string(),
                t.name.clone(),
                scopes.join(" "),
                t.created_at.clone(),
                state,
            ]
        })
        .collect();
    out.table(&["ID", "NAME", "SCOPES", "CREATED", ""], rows)
}
