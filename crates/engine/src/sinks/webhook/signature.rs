//! Signatures of Standard Webhooks 1.0.0: HMAC-SHA256 over `id.timestamp.body`.
//!
//! Not by the crate `standardwebhooks`: it signs text only, brings older versions of what is in
//! the program anyway, and would save the thirty lines below.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD};
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Secrets are often copied without the `=` at their end; other libraries take them, too.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The keys that requests are signed with: one, or two while they are exchanged.
#[derive(Clone)]
pub(super) struct Signer {
    keys: Vec<Hmac<Sha256>>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} keys)", self.keys.len())
    }
}

/// Why a text is not a valid secret. The error never contains the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotASecret {
    Prefix,
    Base64,
    Length(usize),
}

impl fmt::Display for NotASecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotASecret::Prefix => f.write_str("does not begin with 'whsec_'"),
            NotASecret::Base64 => f.write_str("is not base64 after 'whsec_'"),
            NotASecret::Length(length) => {
                write!(f, "holds {length} bytes, and a secret has from 24 to 64")
            }
        }
    }
}

impl Signer {
    /// From secrets in their usual form, `whsec_` and base64. `None` without any.
    pub(super) fn new(secrets: &[impl AsRef<str>]) -> Result<Option<Self>, (usize, NotASecret)> {
        let keys = secrets
            .iter()
            .enumerate()
            .map(|(nth, secret)| key(secret.as_ref()).map_err(|error| (nth, error)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok((!keys.is_empty()).then_some(Signer { keys }))
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut signature = String::with_capacity(self.keys.len() * 48);
        for key in &self.keys {
            let mut mac = key.clone();
            mac.update(id.as_bytes());
            mac.update(format!(".{timestamp}.").as_bytes());
            mac.update(body);
            if !signature.is_empty() {
                signature.push(' ');
            }
            signature.push_str("v1,");
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut signature);
        }
        signature
    }
}

fn key(secret: &str) -> Result<Hmac<Sha256>, NotASecret> {
    let encoded = secret
        .trim()
        .strip_prefix("whsec_")
        .ok_or(NotASecret::Prefix)?;
    let bytes = LENIENT.decode(encoded).map_err(|_| NotASecret::Base64)?;
    if !(24..=64).contains(&bytes.len()) {
        return Err(NotASecret::Length(bytes.len()));
    }
    // HMAC takes keys of every length, so this does not fail.
    Hmac::new_from_slice(&bytes).map_err(|_| NotASecret::Length(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    #[test]
    fn the_published_vector_is_met() {
        let signer = Signer::new(&[SECRET]).unwrap().unwrap();
        assert_eq!(
            signer.sign(ID, 1_614_265_330, BODY),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn two_secrets_make_two_signatures() {
        let other = format!("whsec_{}", STANDARD.encode([7; 64]));
        let signer = Signer::new(&[other.as_str(), SECRET]).unwrap().unwrap();
        let both = signer.sign(ID, 1_614_265_330, BODY);
        let (first, second) = both.split_once(' ').unwrap();
        assert!(first.starts_with("v1,") && first != second);
        assert_eq!(second, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let spoilt = |secret: &str| Signer::new(&[SECRET, secret]).unwrap_err();
        assert_eq!(spoilt("hunter2"), (1, NotASecret::Prefix));
        assert_eq!(spoilt("whsec_!!"), (1, NotASecret::Base64));
        assert_eq!(spoilt("whsec_AAAA"), (1, NotASecret::Length(3)));
        let long = format!("whsec_{}", STANDARD.encode([0; 65]));
        assert_eq!(spoilt(&long), (1, NotASecret::Length(65)));
        let unpadded = STANDARD.encode([0; 25]).replace('=', "");
        assert!(Signer::new(&[format!("whsec_{unpadded}")]).is_ok());
        assert!(Signer::new(&[""; 0]).unwrap().is_none());
    }
}
