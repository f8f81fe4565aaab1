//! What an object holds.

use bytes::Bytes;
use changefeed_core::{Container, Cursor, Error, Kind, Result};

#[cfg(feature = "parquet")]
use super::parquet;
use super::{Lane, Message};
use crate::sinks::formats::place_of;

/// Whether this program can write and read objects of this form.
pub(super) fn check(container: Container) -> Result<()> {
    let feature = match container {
        Container::Ndjson => return Ok(()),
        Container::NdjsonGzip if cfg!(feature = "s3") => return Ok(()),
        Container::NdjsonGzip => "s3",
        Container::Parquet if cfg!(feature = "parquet") => return Ok(()),
        Container::Parquet => "parquet",
    };
    let message = format!(
        "this program cannot write {container}: it was built without the feature '{feature}'"
    );
    Err(Error::new(Kind::Unsupported, message).advise(format!(
        "build it with --features {feature}, or write ndjson"
    )))
}

/// One object of a batch.
pub(super) fn write(
    container: Container,
    lane: &Lane,
    messages: &[Message],
) -> Result<Bytes, String> {
    let _ = lane;
    match container {
        Container::Ndjson => Ok(lines(messages).into()),
        #[cfg(feature = "s3")]
        Container::NdjsonGzip => {
            use std::io::Write;
            let fast = flate2::Compression::fast();
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), fast);
            let written = writer.write_all(&lines(messages));
            let written = written.and_then(|()| writer.finish());
            written.map(Bytes::from).map_err(|e| e.to_string())
        }
        #[cfg(feature = "parquet")]
        Container::Parquet => parquet::write(lane, messages),
        #[allow(unreachable_patterns, reason = "forms are chosen by features")]
        other => Err(format!("{other} is not built in")),
    }
}

/// What the last message of an object is about: its epoch and its cursor.
pub(super) fn last_place(
    container: Container,
    content: &Bytes,
) -> Result<Option<(u32, Cursor)>, String> {
    match container {
        Container::Ndjson => Ok(last_line(content)),
        #[cfg(feature = "s3")]
        Container::NdjsonGzip => {
            use std::io::Read;
            let mut lines = Vec::new();
            let mut reader = flate2::read::MultiGzDecoder::new(&content[..]);
            reader.read_to_end(&mut lines).map_err(|e| e.to_string())?;
            Ok(last_line(&lines))
        }
        #[cfg(feature = "parquet")]
        Container::Parquet => parquet::last_place(content),
        #[allow(unreachable_patterns, reason = "forms are chosen by features")]
        other => Err(format!("{other} is not built in")),
    }
}

fn lines(messages: &[Message]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(messages.iter().map(|m| m.body.len() + 1).sum());
    for message in messages {
        lines.extend_from_slice(&message.body);
        lines.push(b'\n');
    }
    lines
}

fn last_line(lines: &[u8]) -> Option<(u32, Cursor)> {
    let lines = lines.strip_suffix(b"\n")?;
    place_of(lines.rsplit(|byte| *byte == b'\n').next()?)
}
