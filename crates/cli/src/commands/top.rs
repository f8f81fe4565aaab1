//! `changefeed top`

mod panels;
mod screen;
mod terminal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::Looks;
use changefeed::view::Status;
use changefeed::{CancellationToken, Changefeed, Result, require_current};
use tokio::sync::watch;

use crate::args::Top;
use crate::connect;
use crate::output::Out;
use crate::signals;
use screen::{Screen, View};
use terminal::{Key, Terminal};

/// The width of a look that is printed where there is no terminal.
const PRINTED: u16 = 100;

pub(crate) async fn run(database: &str, args: Top, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let place = crate::output::place(database);
    if args.once || out.is_json() {
        return once(&db, &place, args.interval, out).await;
    }
    if !out.is_terminal() {
        return Err(crate::usage("there is no terminal to draw on")
            .advise("add --once to print one look, or --json for a program"));
    }
    let stop = signals::shutdown()?;
    let (tell, seen) = watch::channel(Seen::default());
    tokio::select! {
        () = look(&db, args.interval, tell) => Ok(()),
        ended = watch_screen(&place, seen, stop) => ended,
    }
}

/// What was last seen.
#[derive(Debug, Clone, Default)]
struct Seen {
    status: Option<Arc<Status>>,
    /// Why nothing is seen any more, and since when.
    error: Option<(String, Instant)>,
}

/// Looks until nobody wants to know any more.
async fn look(db: &Changefeed, interval: Duration, tell: watch::Sender<Seen>) {
    let mut looks = Looks::default();
    loop {
        let began = Instant::now();
        match looks.look(db).await {
            Ok(status) => tell.send_replace(Seen {
                status: Some(Arc::new(status)),
                error: None,
            }),
            Err(error) => {
                let mut seen = tell.borrow().clone();
                let since = seen.error.map_or(began, |(_, since)| since);
                seen.error = Some((error.to_string(), since));
                tell.send_replace(seen)
            }
        };
        // Where counting takes long, at most a twentieth of the time is spent on it.
        let pause = interval.max(began.elapsed() * 20);
        tokio::time::sleep(pause.saturating_sub(began.elapsed())).await;
    }
}

/// Draws what is seen until somebody has seen enough. The terminal is as it was whichever way this ends.
async fn watch_screen(
    place: &str,
    mut seen: watch::Receiver<Seen>,
    stop: CancellationToken,
) -> Result<()> {
    let mut terminal = Terminal::take()?;
    let mut view = View::default();
    loop {
        let now = seen.borrow_and_update().clone();
        let error = now.error.map(|(error, since)| {
            let passed = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
            format!(
                "no answer for {}: {error}",
                crate::output::human_ms(passed.max(1))
            )
        });
        let status = now.status.unwrap_or_default();
        let screen = Screen::new(place, &status, error.as_deref());
        terminal.draw(&screen, &mut view)?;
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            told = seen.changed() => if told.is_err() { return Ok(()) },
            key = terminal.key() => match key {
                Some(Key::Quit) | None => return Ok(()),
                Some(key) => view.press(key, &screen),
            },
        }
    }
}

/// Two looks, because rates need two, and what the second one saw.
async fn once(db: &Changefeed, place: &str, interval: Duration, out: &mut Out) -> Result<()> {
    let mut looks = Looks::default();
    looks.look(db).await?;
    tokio::time::sleep(interval).await;
    let status = looks.look(db).await?;
    if out.is_json() {
        return out.object(&status);
    }
    let screen = Screen::new(place, &status, None);
    let width = match out.is_terminal() {
        true => terminal::width().unwrap_or(PRINTED),
        false => PRINTED,
    };
    screen
        .print(width)
        .iter()
        .try_for_each(|line| out.line(line))
}

#[cfg(test)]
mod tests;
