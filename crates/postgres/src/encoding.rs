//! Databases whose encoding is not UTF-8.

use std::sync::OnceLock;

use changefeed_core::Result;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{FromSql, Type};

use crate::error::db;
use crate::row::Cells;

/// A text as the server sent it. In a database without an encoding (`SQL_ASCII`) it need not be
/// UTF-8; what is not is replaced here, so that one such row cannot stop others.
pub(crate) struct Lossy(pub(crate) String);

impl<'a> FromSql<'a> for Lossy {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Lossy(String::from_utf8_lossy(raw).into_owned()))
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::JSON | Type::TEXT)
    }
}

/// Whether the database can hold every character.
#[derive(Debug, Default)]
pub(crate) struct Encoding(OnceLock<bool>);

impl Encoding {
    pub(crate) async fn is_utf8(&self, client: &impl GenericClient) -> Result<bool> {
        if let Some(known) = self.0.get() {
            return Ok(*known);
        }
        let row = client
            .query_one("select getdatabaseencoding() = 'UTF8'", &[])
            .await
            .map_err(db)?;
        let utf8 = row.take(0)?;
        Ok(*self.0.get_or_init(|| utf8))
    }
}

/// The same JSON with nothing but ASCII in it.
pub(crate) fn ascii_json(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        // Outside of texts JSON has only ASCII, so this is within one.
        for unit in c.encode_utf16(&mut [0; 2]) {
            ascii.push_str(&format!("\\u{unit:04x}"));
        }
    }
    ascii
}

/// A sentence with nothing but ASCII in it.
pub(crate) fn ascii_text(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii() { c } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_means_the_same_in_ascii() {
        let json = r#"{"é": "日本 😀 \n"}"#;
        let ascii = ascii_json(json);
        assert!(ascii.is_ascii());
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(json), read(&ascii));
    }
}
