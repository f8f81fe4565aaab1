//! `changefeed listen`

use changefeed::{
    Capture, Delivery, Event, LeasedEvent, Operation, Outcome, Result, Setting, Sink, TriggerId,
    Updates, Webhook, WebhookClient, WebhookOptions, WebhookTarget, listen, require_current,
    unique_name,
};

use crate::args::{Listen, ListenTo};
use crate::connect;
use crate::output::Out;
use crate::signals;

pub(crate) async fn run(database: &str, args: Listen, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let table = db.store().find_table(&db.table(&args.table)?).await?;
    let all = args.on.is_empty();
    let capture = Capture {
        insert: all || args.on.contains(&ListenTo::Insert),
        update: match all || args.on.contains(&ListenTo::Update) {
            true => Updates::Any,
            false => Updates::Ignored,
        },
        delete: all || args.on.contains(&ListenTo::Delete),
        condition: args.when,
        ..Capture::default()
    };
    let forward = args
        .forward
        .map(Forward::to)
        .transpose()?
        .map(std::sync::Arc::new);
    let shutdown = signals::shutdown()?;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<(Event, Option<Told>)>();
    let function = move |event: Event| {
        let (tell, forward) = (tell.clone(), forward.clone());
        async move {
            let answer = match &forward {
                Some(forward) => Some(forward.send(&event).await),
                None => None,
            };
            // Whoever printed it is gone: so are we, in a moment.
            let _ = tell.send((event, answer));
            Ok::<(), String>(())
        }
    };
    let name = unique_name();
    let shown = table.to_string();
    let ready = |_: &_| {
        eprintln_ready(&shown, args.quiet);
    };
    let listening = listen(
        db.store().clone(),
        table.clone(),
        capture,
        &name,
        function,
        ready,
        shutdown.clone(),
    );
    let mut listening = std::pin::pin!(listening);
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut listening => break ended,
            Some((event, answer)) = told.recv() => {
                if let Err(error) = print(&event, answer, out) {
                    // The output was closed: what was made must go all the same.
                    shutdown.cancel();
                    break listening.await.and(Err(error));
                }
            }
        }
    };
    while let Ok((event, answer)) = told.try_recv() {
        print(&event, answer, out)?;
    }
    ended
}

#[allow(clippy::print_stderr, reason = "it is no data, and no log either")]
fn eprintln_ready(table: &str, quiet: bool) {
    if !quiet {
        eprintln!("listening to {table}; Ctrl-C ends it and leaves nothing behind");
    }
}

/// How a forwarded event fared.
struct Told {
    status: Option<u16>,
    error: Option<String>,
    duration_ms: i64,
}

/// Where events are sent.
struct Forward {
    client: WebhookClient,
    target: WebhookTarget,
}

impl Forward {
    fn to(url: String) -> Result<Forward> {
        let delivery = Delivery {
            sink: Sink::Webhook(Webhook::new(Setting::Value(url))).granted(),
            ..Delivery::default()
        };
        delivery.sink.validate(&changefeed::EVENT_VALUES)?;
        let options = WebhookOptions::default();
        let target = WebhookTarget::prepare(&"listen".parse()?, &delivery, &options.variables)?;
        Ok(Forward {
            client: WebhookClient::new(options)?,
            target,
        })
    }

    async fn send(&self, event: &Event) -> Told {
        let leased = LeasedEvent {
            trigger: TriggerId(0),
            event: event.clone(),
            generation: 0,
            attempt: 1,
            cut_off: 0,
        };
        let attempt = self.client.send(&self.target, &leased).await.attempt;
        Told {
            status: attempt.status,
            error: attempt
                .error
                .filter(|_| attempt.outcome != Outcome::Success),
            duration_ms: attempt.duration_ms,
        }
    }
}

fn print(event: &Event, answer: Option<Told>, out: &mut Out) -> Result<()> {
    if out.is_json() {
        let mut object = serde_json::to_value(event).unwrap_or_default();
        if let (Some(told), Some(object)) = (&answer, object.as_object_mut()) {
            object.insert(
                "forwarded".to_owned(),
                serde_json::json!({
                    "status": told.status, "error": told.error, "duration_ms": told.duration_ms,
                }),
            );
        }
        out.object(&object)?;
        return out.flush();
    }
    let row = |row: &Option<Box<serde_json::value::RawValue>>| {
        row.as_ref().map_or("null", |r| r.get()).to_owned()
    };
    let rows = match event.op {
        Operation::Delete => row(&event.old),
        Operation::Update => format!("{} → {}", row(&event.old), row(&event.new)),
        Operation::Insert | Operation::Manual => row(&event.new),
    };
    let answer = match answer {
        None => String::new(),
        Some(Told {
            error: Some(error), ..
        }) => format!("  [{error}]"),
        Some(told) => format!(
            "  [{}, {} ms]",
            told.status.map_or_else(String::new, |s| s.to_string()),
            told.duration_ms
        ),
    };
    out.line(format!("{:<6}  {rows}{answer}", event.op.as_str()))?;
    out.flush()
}
