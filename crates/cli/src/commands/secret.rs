//! `changefeed secret`

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use changefeed::{Error, Kind, Result};
use serde::Serialize;

use crate::args::Secret;
use crate::output::Out;

/// As long as Standard Webhooks recommends.
const BYTES: usize = 32;

#[derive(Serialize)]
struct Made {
    secret: String,
}

pub(crate) fn run(secret: &Secret, out: &mut Out) -> Result<()> {
    match secret {
        Secret::Generate => {
            let mut random = [0; BYTES];
            getrandom::fill(&mut random).map_err(|error| {
                Error::new(Kind::Database, "the system gave no random bytes").caused_by(error)
            })?;
            let secret = format!("whsec_{}", STANDARD.encode(random));
            match out.is_json() {
                true => out.object(&Made { secret }),
                false => out.line(secret),
            }
        }
    }
}
