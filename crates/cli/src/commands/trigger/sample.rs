//! `changefeed trigger sample`

use changefeed::{
    Changefeed, Error, Event, EventBits, EventFilter, EventId, LeasedEvent, Operation, Outcome,
    Result, TriggerName, Uuid, WebhookClient, WebhookOptions, WebhookTarget, raw_json,
};

use crate::output::Out;

/// Shows, or sends, what a receiver would get: of the newest event of the trigger, or of a payload. It is not in the
/// event log.
pub(super) async fn run(
    db: &Changefeed,
    name: &TriggerName,
    payload: Option<String>,
    send: bool,
    out: &mut Out,
) -> Result<()> {
    let handle = db.trigger(name.as_str()).await?;
    let trigger = handle.definition();
    let filter = EventFilter {
        trigger: Some(name.clone()),
        ..EventFilter::default()
    };
    let mut event = match db.events(&filter, 1).await?.pop() {
        Some(logged) => logged.event,
        None => Event {
            id: EventId(Uuid::nil()),
            change_id: 0,
            trigger: name.clone(),
            table: trigger.definition.table.clone(),
            op: Operation::Insert,
            old: None,
            new: Some(raw_json(r#"{"sample":true}"#.to_owned())?),
            session_variables: None,
            trace_context: None,
            created_at: humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string(),
        },
    };
    if let Some(payload) = payload {
        event.new = Some(raw_json(payload).map_err(|e| {
            Error::invalid("the payload is not JSON")
                .advise("quote it for the shell: --payload '{\"id\": 1}'")
                .caused_by(e)
        })?);
    }
    // Receivers that remember ids must not take it for the event itself.
    event.id = EventId::new(event.change_id, EventBits::new(random()));
    let leased = LeasedEvent {
        trigger: trigger.id,
        event,
        generation: 0,
        attempt: 1,
        cut_off: 0,
    };
    let delivery = &trigger.definition.delivery;
    if delivery.sink.as_webhook().is_none() {
        if send {
            return Err(Error::invalid(format!(
                "trigger '{name}' has no webhook that a sample could be sent to"
            )));
        }
        return out.object(&leased.event);
    }
    let options = WebhookOptions::default();
    let target = WebhookTarget::prepare(name, delivery, &options.variables)?;
    let client = WebhookClient::new(options)?;
    if !send {
        return out.object(&client.preview(&target, &leased)?);
    }
    let attempt = client.send(&target, &leased).await.attempt;
    if out.is_json() {
        out.object(&attempt)?;
    } else {
        let answer = attempt.status.map_or_else(String::new, |s| s.to_string());
        let response = attempt.response.as_ref().map_or("", |r| r.get());
        out.line(format!("{answer} {response}").trim())?;
    }
    match (attempt.outcome, attempt.error) {
        (Outcome::Success, _) => Ok(()),
        (_, error) => Err(Error::new(
            changefeed::Kind::Unavailable,
            error.unwrap_or_else(|| "the receiver refused it".to_owned()),
        )),
    }
}

fn random() -> i64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(()).cast_signed()
}
