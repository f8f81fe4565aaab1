//! Objects with columns. They are the same whatever the table looks like, so that a lake never has to merge schemas:
//! keys and rows are JSON texts.

use std::sync::Arc;

use bytes::Bytes;
use changefeed_core::Cursor;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::Result as Written;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Lane, Message};

/// Stable: columns are added at the end, and none is ever changed.
const SCHEMA: &str = "message changefeed {
    REQUIRED BYTE_ARRAY feed (STRING);
    REQUIRED INT32 shard;
    REQUIRED INT32 epoch;
    REQUIRED BYTE_ARRAY cursor (STRING);
    OPTIONAL INT64 number;
    OPTIONAL INT64 time (TIMESTAMP(MILLIS,true));
    OPTIONAL INT64 change_id;
    OPTIONAL BYTE_ARRAY op (STRING);
    OPTIONAL BYTE_ARRAY key (STRING);
    OPTIONAL BYTE_ARRAY old (STRING);
    OPTIONAL BYTE_ARRAY new (STRING);
    OPTIONAL BYTE_ARRAY row (STRING);
}";

/// Where the footer says what the last row is about.
const EPOCH: &str = "changefeed.epoch";
const LAST: &str = "changefeed.last";

/// What columns take from a message.
#[derive(Deserialize)]
struct Columns<'a> {
    change_id: Option<String>,
    op: Option<String>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    old: Option<&'a RawValue>,
    #[serde(borrow)]
    new: Option<&'a RawValue>,
    #[serde(borrow)]
    row: Option<&'a RawValue>,
}

/// One object of a batch.
pub(super) fn write(lane: &Lane, messages: &[Message]) -> Result<Bytes, String> {
    let rows: Result<Vec<Columns<'_>>, _> = messages
        .iter()
        .map(|message| serde_json::from_slice(&message.body))
        .collect();
    let rows = rows.map_err(|e| format!("a message is not of the format json: {e}"))?;
    written(lane, messages, &rows).map_err(|e| e.to_string())
}

fn written(lane: &Lane, messages: &[Message], rows: &[Columns<'_>]) -> Written<Bytes> {
    let last = messages.last().map(|message| message.cursor.to_string());
    let about = vec![
        KeyValue::new(EPOCH.to_owned(), lane.epoch.to_string()),
        KeyValue::new(LAST.to_owned(), last),
    ];
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("changefeed ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(about))
        .build();
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let text = |raw: Option<&RawValue>| raw.map(|raw| ByteArray::from(raw.get()));
    let number = |message: &Message| message.cursor.number();
    let time = |message: &Message| match message.cursor {
        Cursor::Ulid(ulid) => i64::try_from(ulid.time()).ok(),
        _ => None,
    };
    let every = rows.len();
    let epoch = i32::try_from(lane.epoch).unwrap_or(i32::MAX);
    texts(
        &mut group,
        (0..every).map(|_| Some(lane.feed.as_str().into())),
        true,
    )?;
    int32(&mut group, vec![i32::from(lane.shard.0); every])?;
    int32(&mut group, vec![epoch; every])?;
    let cursors = messages
        .iter()
        .map(|m| Some(m.cursor.to_string().as_str().into()));
    texts(&mut group, cursors, true)?;
    int64(&mut group, messages.iter().map(number))?;
    int64(&mut group, messages.iter().map(time))?;
    let change_id = |row: &Columns<'_>| row.change_id.as_ref()?.parse().ok();
    int64(&mut group, rows.iter().map(change_id))?;
    texts(
        &mut group,
        rows.iter()
            .map(|row| row.op.as_deref().map(ByteArray::from)),
        false,
    )?;
    texts(&mut group, rows.iter().map(|row| text(row.key)), false)?;
    texts(&mut group, rows.iter().map(|row| text(row.old)), false)?;
    texts(&mut group, rows.iter().map(|row| text(row.new)), false)?;
    texts(&mut group, rows.iter().map(|row| text(row.row)), false)?;
    group.close()?;
    writer.into_inner().map(Bytes::from)
}

type Group<'a> = SerializedRowGroupWriter<'a, Vec<u8>>;

fn int32(group: &mut Group<'_>, values: Vec<i32>) -> Written<()> {
    if let Some(mut column) = group.next_column()? {
        column
            .typed::<Int32Type>()
            .write_batch(&values, None, None)?;
        column.close()?;
    }
    Ok(())
}

fn int64(group: &mut Group<'_>, values: impl Iterator<Item = Option<i64>>) -> Written<()> {
    let (there, levels) = split(values);
    if let Some(mut column) = group.next_column()? {
        column
            .typed::<Int64Type>()
            .write_batch(&there, Some(&levels), None)?;
        column.close()?;
    }
    Ok(())
}

fn texts(
    group: &mut Group<'_>,
    values: impl Iterator<Item = Option<ByteArray>>,
    required: bool,
) -> Written<()> {
    let (there, levels) = split(values);
    let levels = (!required).then_some(&levels[..]);
    if let Some(mut column) = group.next_column()? {
        column
            .typed::<ByteArrayType>()
            .write_batch(&there, levels, None)?;
        column.close()?;
    }
    Ok(())
}

/// The values that are there, and for each row whether it has one.
fn split<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let (mut there, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        there.extend(value);
    }
    (there, levels)
}

/// What the last row is about: its epoch and its cursor.
pub(super) fn last_place(content: &Bytes) -> Result<Option<(u32, Cursor)>, String> {
    let reader = SerializedFileReader::new(content.clone()).map_err(|e| e.to_string())?;
    let about = reader.metadata().file_metadata().key_value_metadata();
    let find = |key: &str| {
        let found = about?.iter().find(|pair| pair.key == key)?;
        found.value.clone()
    };
    let place = || Some((find(EPOCH)?.parse().ok()?, find(LAST)?.parse().ok()?));
    Ok(place())
}
