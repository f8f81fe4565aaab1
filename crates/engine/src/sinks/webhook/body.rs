//! The body that Hasura's event triggers send, member for member, so that a webhook which was
//! written for them works unchanged.
//!
//! Rows are passed through as the database wrote them: they are never taken apart, so a number
//! with more digits than a float arrives with all of them.

use changefeed_core::{EventId, LeasedEvent, Operation, Result, TableName};
use serde::Serialize;
use serde_json::value::RawValue;

use super::to_raw;

#[derive(Serialize)]
struct Body<'a> {
    id: EventId,
    created_at: &'a str,
    trigger: Trigger<'a>,
    table: Table<'a>,
    event: Inner<'a>,
    delivery_info: DeliveryInfo,
}

/// A table as Hasura writes it.
#[derive(Serialize)]
pub(super) struct Table<'a> {
    schema: Option<&'a str>,
    name: &'a str,
}

impl<'a> From<&'a TableName> for Table<'a> {
    fn from(table: &'a TableName) -> Self {
        Table {
            schema: table.schema.as_deref(),
            name: &table.name,
        }
    }
}

#[derive(Serialize)]
struct Trigger<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Inner<'a> {
    op: Operation,
    data: Data<'a>,
    session_variables: Option<&'a RawValue>,
    trace_context: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Data<'a> {
    old: Option<&'a RawValue>,
    new: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct DeliveryInfo {
    current_retry: u32,
    max_retries: u32,
}

/// Writes the body of an attempt.
pub(super) fn hasura(leased: &LeasedEvent, max_retries: u32) -> Result<Box<RawValue>> {
    let event = &leased.event;
    to_raw(&Body {
        id: event.id,
        created_at: &event.created_at,
        trigger: Trigger {
            name: event.trigger.as_str(),
        },
        table: (&event.table).into(),
        event: Inner {
            op: event.op,
            data: Data {
                old: event.old.as_deref(),
                new: event.new.as_deref(),
            },
            session_variables: event.session_variables.as_deref(),
            trace_context: event.trace_context.as_deref(),
        },
        delivery_info: DeliveryInfo {
            current_retry: leased.attempt.saturating_sub(1),
            max_retries,
        },
    })
}
