//! The secrets of tokens: made, taken apart and compared here, kept nowhere.
//!
//! A token is `cft_ID_SECRET`: the id finds its row, and the SHA-256 of the secret must be the one in
//! that row. The secret has 256 random bits, so that its hash needs neither salt nor delay.

use changefeed_core::{Error, Kind, NewToken, Result, Scope, TokenDigest, TokenId};
use sha2::{Digest, Sha256};
use std::time::Duration;
use subtle::ConstantTimeEq;

const PREFIX: &str = "cft_";
const SECRET_BYTES: usize = 32;

/// A token to be created, and the text that its owner gets to see once.
pub fn new_token(
    name: &str,
    scopes: Vec<Scope>,
    expires_after: Option<Duration>,
) -> Result<(NewToken, String)> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let random = |bytes: &mut [u8]| {
        getrandom::fill(bytes).map_err(|e| {
            Error::new(
                Kind::Unavailable,
                format!("this system gives no random bytes: {e}"),
            )
        })
    };
    let mut id = [0u8; TokenId::LENGTH];
    random(&mut id)?;
    // 32 letters divide 256 evenly, so every one is as likely as any other.
    let id: String = id
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(byte % 32)]))
        .collect();
    let mut secret = [0u8; SECRET_BYTES];
    random(&mut secret)?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let new = NewToken {
        id: id.parse()?,
        name: name.to_owned(),
        digest: digest(&secret),
        scopes,
        expires_after,
    };
    new.validate()?;
    let text = format!("{PREFIX}{id}_{secret}");
    Ok((new, text))
}

fn digest(secret: &str) -> TokenDigest {
    TokenDigest(Sha256::digest(secret.as_bytes()).into())
}

/// A token as somebody has sent it.
pub(crate) struct Presented {
    pub(crate) id: TokenId,
    digest: TokenDigest,
}

impl Presented {
    /// Takes a token apart; `None` if it cannot be one of ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        Some(Presented {
            id: id.parse().ok()?,
            digest: digest(secret),
        })
    }

    /// Whether its secret is the one; takes the same time wherever they differ.
    pub(crate) fn is(&self, kept: &TokenDigest) -> bool {
        self.digest.0.ct_eq(&kept.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_that_was_given_out_fits() {
        let (new, text) = new_token("a", vec![Scope::Read], None).unwrap();
        let presented = Presented::parse(&text).unwrap();
        assert_eq!(presented.id, new.id);
        assert!(presented.is(&new.digest));
        let other = format!("{}0", &text[..text.len() - 1]);
        let same = other == text;
        assert_eq!(Presented::parse(&other).unwrap().is(&new.digest), same);
        for bad in ["", "cft_", "cft_x_y", "Bearer x", "cft_aaaaaaaaaaaa"] {
            assert!(Presented::parse(bad).is_none(), "{bad}");
        }
        let (_, another) = new_token("a", vec![Scope::Read], None).unwrap();
        assert_ne!(another, text);
    }
}
