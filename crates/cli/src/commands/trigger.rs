//! `changefeed trigger`

mod create;
mod sample;

pub(crate) use create::definition;

use changefeed::view::TriggerView;
use changefeed::{
    Backfill, Changefeed, Error, EventTrigger, Format, Growth, OrderBy, Result, Setting, Updates,
    format_span,
};

use crate::args::Trigger;
use crate::connect;
use crate::output::{Out, confirm, progress_bar};

pub(crate) async fn run(database: &str, args: Trigger, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Trigger::Create(args) => create::run(&db, *args, out).await,
        Trigger::List => list(&db, out).await,
        Trigger::Show { name } => show(&db, name.as_str(), out).await,
        Trigger::Pause { name, reason } => {
            db.trigger(name.as_str()).await?.pause(&reason).await?;
            out.say(format!(
                "trigger {name} is paused; changes are captured all the same"
            ))
        }
        Trigger::Resume { name } => {
            db.trigger(name.as_str()).await?.resume().await?;
            out.say(format!("trigger {name} delivers again"))
        }
        Trigger::Invoke { name, payload } => invoke(&db, name.as_str(), &payload, out).await,
        Trigger::Sample {
            name,
            payload,
            send,
        } => sample::run(&db, &name, payload, send, out).await,
        Trigger::Backfill { name, batch } => backfill(&db, name.as_str(), batch, out).await,
        Trigger::Drop { name, yes } => {
            let trigger = db.trigger(name.as_str()).await?;
            confirm(
                &format!(
                    "This removes trigger '{name}'; events that were not delivered will not be."
                ),
                yes,
            )?;
            trigger.drop_trigger().await?;
            out.say(format!("trigger {name} is gone"))
        }
    }
}

async fn list(db: &Changefeed, out: &mut Out) -> Result<()> {
    let triggers = db.triggers().await?;
    let states = db.trigger_states().await?;
    let views: Vec<TriggerView> = triggers.iter().map(|t| t.view(&states)).collect();
    if out.is_json() {
        return views.iter().try_for_each(|view| out.object(view));
    }
    if triggers.is_empty() {
        return out
            .line("no event triggers yet; `changefeed trigger create NAME --table T --webhook URL` makes one");
    }
    let rows = views
        .iter()
        .map(|TriggerView { trigger, state }| {
            let state = state.as_ref();
            let count = |n: Option<i64>| n.map_or_else(String::new, |n| n.to_string());
            vec![
                trigger.definition.name.to_string(),
                trigger.definition.table.to_string(),
                operations(trigger),
                target(trigger),
                count(state.map(|s| s.pending)),
                count(state.map(|s| s.dead_letters)),
                trigger
                    .paused
                    .as_ref()
                    .map_or_else(String::new, |why| format!("paused: {why}")),
            ]
        })
        .collect();
    out.table(
        &[
            "TRIGGER",
            "TABLE",
            "ON",
            "TO",
            "PENDING",
            "DEAD LETTERS",
            "",
        ],
        rows,
    )
}

fn operations(trigger: &EventTrigger) -> String {
    let capture = &trigger.definition.capture;
    let mut all = Vec::new();
    if capture.insert {
        all.push("insert".to_owned());
    }
    match &capture.update {
        Updates::Ignored => {}
        Updates::Any => all.push("update".to_owned()),
        Updates::Of(columns) => all.push(format!("update of {}", columns.join(", "))),
    }
    if capture.delete {
        all.push("delete".to_owned());
    }
    if capture.manual {
        all.push("manual".to_owned());
    }
    all.join(", ")
}

fn target(trigger: &EventTrigger) -> String {
    trigger.definition.delivery.sink.to_string()
}

/// A value, or the variable that holds it.
fn written(setting: &Setting) -> String {
    match setting {
        Setting::Value(value) => value.clone(),
        Setting::FromEnv(variable) => format!("${variable}"),
    }
}

async fn show(db: &Changefeed, name: &str, out: &mut Out) -> Result<()> {
    let handle = db.trigger(name).await?;
    let view = handle.view(&db.trigger_states().await?);
    if out.is_json() {
        return out.object(&view);
    }
    let TriggerView { trigger, state } = &view;
    let capture = &trigger.definition.capture;
    let delivery = &trigger.definition.delivery;
    let retry = &delivery.retry;
    let mut rows = vec![
        ("trigger", trigger.definition.name.to_string()),
        ("table", trigger.definition.table.to_string()),
        ("on", operations(trigger)),
        ("to", target(trigger)),
    ];
    if let Some(why) = &trigger.paused {
        rows.push(("paused", why.clone()));
    }
    if let Some(payload) = &capture.payload {
        rows.push(("payload", payload.join(", ")));
    }
    if let Some(condition) = &capture.condition {
        rows.push(("when", condition.clone()));
    }
    if let Some(feed) = &capture.feed {
        let by = feed
            .shard_by
            .as_ref()
            .map_or_else(String::new, |c| format!(", sharded by {c}"));
        rows.push(("feed", format!("{}{by}", feed.feed)));
    }
    if let Some(webhook) = delivery.sink.as_webhook() {
        for header in &webhook.headers {
            rows.push((
                "header",
                format!("{}: {}", header.name, written(&header.value)),
            ));
        }
        if let Some(body) = &webhook.body {
            rows.push(("body", body.clone()));
        }
        for secret in &webhook.secrets_from_env {
            rows.push(("signed with", format!("${secret}")));
        }
    }
    let wait = match retry.growth {
        Growth::Fixed => format!("after {:?} each", retry.interval),
        Growth::Exponential { cap } => {
            format!("after {:?}, doubling up to {cap:?}", retry.interval)
        }
    };
    rows.push((
        "retries",
        format!("{} {wait}, timeout {:?}", retry.num_retries, retry.timeout),
    ));
    if !retry.final_statuses.is_empty() {
        let statuses: Vec<String> = retry.final_statuses.iter().map(u16::to_string).collect();
        rows.push(("final", statuses.join(", ")));
    }
    match delivery.format {
        Format::Hasura => {}
        Format::Cloudevents => rows.push(("format", "CloudEvents".to_owned())),
        Format::CloudeventsBinary => rows.push(("format", "CloudEvents, binary".to_owned())),
    }
    match &capture.order_by {
        None => {}
        Some(OrderBy::Key) => rows.push(("in order", "by primary key".to_owned())),
        Some(OrderBy::Column(column)) => rows.push(("in order", format!("by {column}"))),
    }
    if let Some(limit) = delivery.concurrency {
        rows.push(("at once", format!("{limit} from one instance")));
    }
    if let Some(limit) = delivery.concurrency_overall {
        rows.push(("at once", format!("{limit} from all instances")));
    }
    if let Some(rate) = delivery.rate {
        rows.push(("rate", format!("{rate} from all instances")));
    }
    if let Some(delay) = delivery.delay {
        rows.push(("delay", format_span(delay)));
    }
    if let Some(window) = delivery.debounce {
        let text = format!("the last of a key in {}", format_span(window));
        rows.push(("debounce", text));
    }
    if let Some(after) = delivery.clean_up_logs_after {
        rows.push(("attempts", format!("kept for {}", format_span(after))));
    }
    if let Some(what) = delivery.clean_up {
        let dead = if what.dead_letters {
            ", dead letters too"
        } else {
            ""
        };
        rows.push(("clean up", format!("after {:?}{dead}", what.after)));
    }
    if let Some(state) = state {
        rows.push((
            "events",
            format!(
                "{} pending ({} being delivered), {} dead letters",
                state.pending, state.in_flight, state.dead_letters
            ),
        ));
    }
    for (what, value) in rows {
        out.line(format!("{what:<12} {value}"))?;
    }
    Ok(())
}

async fn invoke(db: &Changefeed, name: &str, payload: &str, out: &mut Out) -> Result<()> {
    let payload = serde_json::from_str(payload).map_err(|e| {
        Error::invalid("the payload is not JSON")
            .advise("quote it for the shell: --payload '{\"id\": 1}'")
            .caused_by(e)
    })?;
    let id = db.trigger(name).await?.invoke(payload).await?;
    if out.is_json() {
        return out.object(&serde_json::json!({ "event_id": id.to_string() }));
    }
    out.line(format!("event {id} will be delivered"))
}

async fn backfill(db: &Changefeed, name: &str, batch: usize, out: &mut Out) -> Result<()> {
    let trigger = db.trigger(name).await?;
    let bar = progress_bar(out);
    let mut added = 0;
    let last = loop {
        let step = trigger.backfill(batch).await?;
        added += step.added;
        bar.set_length(step.total.max(step.done));
        bar.set_position(step.done);
        if step.finished {
            break step;
        }
    };
    bar.finish_and_clear();
    if out.is_json() {
        return out.object(&Backfill { added, ..last });
    }
    if added == 0 {
        return out.line(format!(
            "nothing left to backfill; {} rows were done before",
            last.done
        ));
    }
    out.line(format!("{added} rows will be delivered as INSERT events"))
}
