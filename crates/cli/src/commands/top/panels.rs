//! What is shown, as tables of texts.

use changefeed::view::{FeedStatus, Status};

use crate::output::human_ms;

/// What a cell means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Tone {
    Plain,
    Quiet,
    Bad,
}

#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) tone: Tone,
}

/// A table with a name, which is the head of its first column. All columns but the first are as wide
/// as what is in them.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Vec<Cell>>,
}

fn plain(text: impl Into<String>) -> Cell {
    Cell {
        text: text.into(),
        tone: Tone::Plain,
    }
}

fn quiet(text: impl Into<String>) -> Cell {
    Cell {
        text: text.into(),
        tone: Tone::Quiet,
    }
}

/// A number that should be 0.
fn bad_unless_0(number: i64) -> Cell {
    Cell {
        text: number.to_string(),
        tone: if number > 0 { Tone::Bad } else { Tone::Plain },
    }
}

fn bad(text: impl Into<String>) -> Cell {
    Cell {
        text: text.into(),
        tone: Tone::Bad,
    }
}

pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 100.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

fn ago(ms: i64) -> Cell {
    quiet(human_ms(ms))
}

/// All panels that have content; the feeds are always shown.
pub(super) fn panels(status: &Status) -> Vec<Panel> {
    let all = [
        feeds(status),
        consumers(status),
        triggers(status),
        watches(status),
        subscriptions(status),
        instances(status),
        incidents(status),
    ];
    all.into_iter()
        .filter(|panel| panel.title == FEEDS || !panel.rows.is_empty())
        .collect()
}

const FEEDS: &str = "FEEDS";

fn feeds(status: &Status) -> Panel {
    let shards = |feed: &FeedStatus| -> Vec<Vec<Cell>> {
        if let Some(error) = &feed.error {
            let name = plain(feed.name.as_str());
            return vec![vec![name, bad(error), quiet(""), quiet(""), quiet("")]];
        }
        let rows = feed.shards.iter().map(|shard| {
            vec![
                plain(format!("{}/{}", feed.name, shard.state.shard)),
                plain(rate(shard.rate)),
                plain(shard.state.pending.to_string()),
                // A moment of waiting is how it works.
                match shard.lag_ms {
                    lag if lag >= 5_000 => bad(human_ms(lag)),
                    lag => plain(human_ms(lag)),
                },
                ago(shard.state.since_ms),
            ]
        });
        rows.collect()
    };
    Panel {
        title: FEEDS,
        columns: &["CHANGES/s", "PENDING", "LAG", "LAST AGO"],
        rows: status.feeds.iter().flat_map(shards).collect(),
    }
}

fn consumers(status: &Status) -> Panel {
    let rows = status.consumers.iter().map(|c| {
        vec![
            plain(c.name.as_str()),
            plain(format!("{}/{}", c.feed, c.shard)),
            match c.expired {
                true => bad("expired"),
                false => plain(c.lag_changes.to_string()),
            },
            plain(human_ms(c.lag_ms)),
            ago(c.idle_ms),
        ]
    });
    Panel {
        title: "CONSUMERS",
        columns: &["SHARD", "BEHIND", "LAG", "STORED AGO"],
        rows: rows.collect(),
    }
}

fn triggers(status: &Status) -> Panel {
    let rows = status.triggers.iter().map(|t| {
        vec![
            match &t.paused {
                Some(_) => bad(format!("{} (paused)", t.state.name)),
                None => plain(t.state.name.as_str()),
            },
            plain(rate(t.success_rate)),
            match t.failure_rate {
                Some(failing) if failing > 0.0 => bad(rate(t.failure_rate)),
                _ => plain(rate(t.failure_rate)),
            },
            plain(t.state.pending.to_string()),
            plain(t.state.in_flight.to_string()),
            bad_unless_0(t.state.dead_letters),
            match t.state.overdue_ms {
                Some(overdue) if overdue >= 60_000 => bad(human_ms(overdue)),
                Some(overdue) => plain(human_ms(overdue)),
                None => quiet("-"),
            },
        ]
    });
    Panel {
        title: "TRIGGERS",
        columns: &[
            "OK/s",
            "FAILED/s",
            "PENDING",
            "IN FLIGHT",
            "DEAD LETTERS",
            "OVERDUE",
        ],
        rows: rows.collect(),
    }
}

fn watches(status: &Status) -> Panel {
    let rows = status.watches.iter().map(|w| {
        vec![
            plain(format!(
                "{} of {}",
                w.status.watch.name, w.status.watch.table
            )),
            plain(w.status.unprocessed.to_string()),
            plain(w.status.leased.to_string()),
            bad_unless_0(w.status.parked),
            plain(w.status.suggested_workers.to_string()),
            match w.status.idle_ms {
                Some(idle) => ago(idle),
                None => quiet("never"),
            },
        ]
    });
    Panel {
        title: "WATCHES",
        columns: &["PENDING", "LEASED", "PARKED", "WORKERS", "SEEN AGO"],
        rows: rows.collect(),
    }
}

fn subscriptions(status: &Status) -> Panel {
    let rows = status.subscriptions.iter().map(|s| {
        vec![
            plain(format!("{} of {}", s.name, s.feed)),
            match s.state {
                "failing" | "stopped" | "paused" => bad(s.state),
                state => plain(state),
            },
            plain(rate(s.rate)),
            plain(s.lag_changes.to_string()),
            plain(human_ms(s.lag_ms)),
            match s.failing_ms {
                Some(since) => bad(human_ms(since)),
                None => quiet("-"),
            },
        ]
    });
    Panel {
        title: "SUBSCRIPTIONS",
        columns: &["STATE", "SENT/s", "BEHIND", "LAG", "FAILING FOR"],
        rows: rows.collect(),
    }
}

fn instances(status: &Status) -> Panel {
    let rows = status.instances.iter().map(|i| {
        vec![
            plain(&i.instance.name),
            plain(i.instance.roles.join(" ")),
            plain(match i.leases.is_empty() {
                true => "-".to_owned(),
                false => i.leases.join(" "),
            }),
            ago(i.instance.up_ms),
            match i.instance.seen_ms {
                late if late > 15_000 => bad(human_ms(late)),
                seen => ago(seen),
            },
        ]
    });
    Panel {
        title: "INSTANCES",
        columns: &["DOES", "HOLDS", "UP", "SEEN AGO"],
        rows: rows.collect(),
    }
}

fn incidents(status: &Status) -> Panel {
    let rows = status.incidents.iter().map(|i| {
        vec![
            plain(format!("{}/{}", i.feed, i.shard)),
            bad_unless_0(i.count),
            ago(i.since_ms),
        ]
    });
    Panel {
        title: "INCIDENTS",
        columns: &["LOST WRITERS", "LAST AGO"],
        rows: rows.collect(),
    }
}
