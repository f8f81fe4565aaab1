//! Several statements as one message, and what the server answers to each.

use changefeed_core::{Error, Result, words};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::error::{db, is_undefined};
use crate::tracking::lock_kept;
use crate::typed::NoValue;

/// One statement's answer.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<Vec<Option<String>>>,
    pub(super) count: u64,
    /// Whether there are bytes that are no text: a database with the encoding SQL_ASCII takes any.
    pub(super) garbled: bool,
}

impl Answer {
    pub(super) fn text(&self, column: usize) -> Option<&str> {
        self.rows.first()?.get(column)?.as_deref()
    }

    pub(super) fn number(&self, column: usize) -> Option<i64> {
        self.text(column)?.parse().ok()
    }
}

/// Sends statements as one message and one transaction.
pub(super) async fn send(client: &ClientWrapper, sql: &str) -> Result<Vec<Answer>> {
    exchange(client, sql).await.map_err(explain)
}

/// The same; if a value could not be read as its type, other statements are sent instead.
pub(super) async fn send_or(
    client: &ClientWrapper,
    sql: &str,
    otherwise: impl FnOnce() -> Result<String>,
) -> Result<Vec<Answer>> {
    match exchange(client, sql).await {
        Err(error) if error.code().is_some_and(|c| c.code().starts_with("22")) => {
            send(client, &otherwise()?).await
        }
        answers => answers.map_err(explain),
    }
}

/// Opens the cursor `changefeed_rows` in a transaction that `begin` begins, with a parameter of a type
/// that is known by its number only, and returns what it finds. All of this is sent at once: a process
/// that is stopped in between holds nothing.
pub(super) async fn read(
    client: &ClientWrapper,
    begin: &str,
    declare: &str,
    parameter: Type,
) -> Result<Answer> {
    let parameters = [(
        &NoValue as &(dyn tokio_postgres::types::ToSql + Sync),
        parameter,
    )];
    let (ready, declared, committed, fetched, closed) = tokio::join!(
        client.batch_execute(begin),
        client.query_typed(declare, &parameters),
        client.batch_execute("commit"),
        exchange(client, "fetch all from changefeed_rows"),
        client.batch_execute("close all"),
    );
    ready.map_err(explain)?;
    declared.map_err(explain)?;
    committed.map_err(explain)?;
    let mut answers = fetched.map_err(explain)?;
    closed.map_err(explain)?;
    answers.pop().ok_or_else(words::server_unexpected)
}

async fn exchange(client: &ClientWrapper, sql: &str) -> Result<Vec<Answer>, tokio_postgres::Error> {
    let mut answers = Vec::new();
    let mut answer = Answer::default();
    for message in client.simple_query(sql).await? {
        match message {
            SimpleQueryMessage::Row(row) => {
                let mut values = Vec::with_capacity(row.len());
                for column in 0..row.len() {
                    let value = row.try_get(column).unwrap_or_else(|_| {
                        answer.garbled = true;
                        Some("(not UTF-8)")
                    });
                    values.push(value.map(str::to_owned));
                }
                answer.rows.push(values);
            }
            SimpleQueryMessage::CommandComplete(count) => {
                answer.count = count;
                answers.push(std::mem::take(&mut answer));
            }
            _ => {}
        }
    }
    Ok(answers)
}

pub(crate) fn explain(error: tokio_postgres::Error) -> Error {
    let altered = error.code().is_some_and(|c| {
        *c == SqlState::UNDEFINED_FUNCTION
            || *c == SqlState::AMBIGUOUS_FUNCTION
            || *c == SqlState::DATATYPE_MISMATCH
    });
    if altered {
        return Error::not_found("a key column of this watch has another type by now")
            .advise("start the watch again: its tables are brought to that type")
            .caused_by(error);
    }
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return lock_kept().caused_by(error);
    }
    if is_undefined(&error) {
        return words::watch_table_missing().caused_by(error);
    }
    db(error)
}
