//! `changefeed event`

use changefeed::view::EventDetail;
use changefeed::{
    Changefeed, CleanUp, Cleaned, Error, EventFilter, EventId, EventStatus, LoggedEvent, Outcome,
    Redelivery, Result,
};

use crate::args::{Cleanup, Event, ListEvents, Redeliver, Which};
use crate::connect;
use crate::output::Out;

pub(crate) async fn run(database: &str, args: Event, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Event::List(args) => list(&db, args, out).await,
        Event::Show { id } => show(&db, id, out).await,
        Event::Redeliver(args) => redeliver(&db, args, out).await,
        Event::Cleanup(args) => clean_up(&db, args, out).await,
    }
}

fn filter(which: Which) -> EventFilter {
    EventFilter {
        trigger: which.trigger,
        status: which.status.map(EventStatus::from),
        since: which.since,
        until: which.until,
        http_status: which.http_status,
        error: which.error,
        before: None,
    }
}

async fn list(db: &Changefeed, args: ListEvents, out: &mut Out) -> Result<()> {
    let filter = EventFilter {
        before: args.before,
        ..filter(args.which)
    };
    let events = db.events(&filter, args.limit).await?;
    if out.is_json() {
        for event in &events {
            out.object(event)?;
        }
        return Ok(());
    }
    if events.is_empty() {
        return out.line("no such events");
    }
    let rows = events
        .iter()
        .map(|e| {
            vec![
                e.event.id.to_string(),
                e.event.created_at.clone(),
                e.event.trigger.to_string(),
                format!("{} {}", e.event.op.as_str(), e.event.table),
                state(e),
                e.tries.to_string(),
                answer(e),
            ]
        })
        .collect();
    out.table(
        &[
            "EVENT", "CAPTURED", "TRIGGER", "CHANGE", "STATE", "TRIES", "ANSWER",
        ],
        rows,
    )?;
    if events.len() == args.limit
        && let Some(last) = events.last()
    {
        out.line(format!(
            "there may be more: --before {}",
            last.event.change_id
        ))?;
    }
    Ok(())
}

/// What the newest attempt was answered, or why it failed.
fn answer(event: &LoggedEvent) -> String {
    let status = event.last_status.map(|status| status.to_string());
    let error = event.last_error.clone();
    error.or(status).unwrap_or_default()
}

fn state(event: &LoggedEvent) -> String {
    match event.status {
        EventStatus::Pending if event.locked_by.is_some() => "being delivered".to_owned(),
        EventStatus::Pending if event.tries > 0 => "waits to be tried again".to_owned(),
        EventStatus::Pending => "pending".to_owned(),
        EventStatus::Delivered => "delivered".to_owned(),
        EventStatus::DeadLetter => "dead letter".to_owned(),
        EventStatus::Archived => "archived".to_owned(),
        EventStatus::Collapsed => "collapsed into a later event".to_owned(),
    }
}

async fn show(db: &Changefeed, id: EventId, out: &mut Out) -> Result<()> {
    let Some((event, attempts)) = db.event(id).await? else {
        return Err(Error::not_found(format!("there is no event {id}"))
            .advise("`changefeed event list` shows the events"));
    };
    if out.is_json() {
        return out.object(&EventDetail { event, attempts });
    }
    let json = |value: &Option<Box<serde_json::value::RawValue>>| {
        value
            .as_ref()
            .map_or_else(|| "null".to_owned(), |v| v.get().to_owned())
    };
    let mut rows = vec![
        ("event", id.to_string()),
        ("change_id", event.event.change_id.to_string()),
        ("trigger", event.event.trigger.to_string()),
        (
            "change",
            format!("{} {}", event.event.op.as_str(), event.event.table),
        ),
        ("captured", event.event.created_at.clone()),
        ("old", json(&event.event.old)),
        ("new", json(&event.event.new)),
        ("state", state(&event)),
        ("tries", event.tries.to_string()),
    ];
    if event.event.session_variables.is_some() {
        rows.push(("session", json(&event.event.session_variables)));
    }
    if event.event.trace_context.is_some() {
        rows.push(("trace", json(&event.event.trace_context)));
    }
    if let Some(by) = &event.locked_by {
        rows.push(("held by", by.clone()));
    }
    if let Some(at) = &event.next_retry_at {
        rows.push(("due", at.clone()));
    }
    for (what, value) in rows {
        out.line(format!("{what:<10} {value}"))?;
    }
    if attempts.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let rows = attempts
        .iter()
        .map(|a| {
            let outcome = match a.attempt.outcome {
                Outcome::Success => "delivered",
                Outcome::Failure => "failed",
                Outcome::Unknown => "outcome unknown",
            };
            let late = if a.late { ", too late to count" } else { "" };
            vec![
                a.attempt.number.to_string(),
                a.created_at.clone(),
                format!("{outcome}{late}"),
                a.attempt.status.map_or_else(String::new, |s| s.to_string()),
                format!("{} ms", a.attempt.duration_ms),
                a.attempt.error.clone().unwrap_or_default(),
            ]
        })
        .collect();
    out.table(
        &["ATTEMPT", "AT", "OUTCOME", "STATUS", "TOOK", "ERROR"],
        rows,
    )?;
    out.line("--json shows requests and responses")
}

async fn redeliver(db: &Changefeed, args: Redeliver, out: &mut Out) -> Result<()> {
    let which = match args.id {
        Some(id) => Redelivery::Event(id),
        None => Redelivery::Matching(filter(args.which)),
    };
    let events = db.redeliver(&which).await?;
    if out.is_json() {
        return out.object(&serde_json::json!({ "events": events }));
    }
    out.line(match events {
        0 => "no finished event is like that".to_owned(),
        1 => "1 event will be delivered again".to_owned(),
        n => format!("{n} events will be delivered again"),
    })
}

async fn clean_up(db: &Changefeed, args: Cleanup, out: &mut Out) -> Result<()> {
    let trigger = match &args.trigger {
        Some(name) => Some(db.trigger(name.as_str()).await?),
        None => None,
    };
    let what = CleanUp {
        after: args.older_than,
        dead_letters: args.dead_letters,
    };
    let trigger = trigger.as_ref();
    let mut total = Cleaned {
        more: true,
        ..Cleaned::default()
    };
    while total.more {
        total.more = false;
        total.add(match args.logs {
            true => {
                db.clean_up_attempts(trigger, args.older_than, args.batch)
                    .await?
            }
            false => db.clean_up_events(trigger, what, args.batch).await?,
        });
    }
    if out.is_json() {
        return out.object(&total);
    }
    out.line(format!(
        "{} events removed, with {} attempts",
        total.events, total.attempts
    ))
}
