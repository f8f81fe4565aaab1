//! The terminal: taken, drawn on, and given back as it was.

use std::io;

use changefeed::{Error, Kind, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::screen::{Screen, View};

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Key {
    Quit,
    NextPanel,
    PreviousPanel,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Nothing was pressed, but the size is another.
    Resized,
}

/// The terminal. It is given back when this is dropped, and also when the program panics.
pub(super) struct Terminal {
    inner: DefaultTerminal,
    keys: mpsc::UnboundedReceiver<Key>,
}

impl Terminal {
    pub(super) fn take() -> Result<Self> {
        let inner = ratatui::try_init().map_err(lost)?;
        let (tell, keys) = mpsc::unbounded_channel();
        // Reading blocks, and ends with the process.
        std::thread::spawn(move || {
            while let Ok(event) = event::read() {
                if let Some(key) = key(&event)
                    && tell.send(key).is_err()
                {
                    return;
                }
            }
        });
        Ok(Terminal { inner, keys })
    }

    pub(super) fn draw(&mut self, screen: &Screen<'_>, view: &mut View) -> Result<()> {
        self.inner
            .draw(|frame| screen.draw(view, frame.area(), frame.buffer_mut()))
            .map(drop)
            .map_err(lost)
    }

    /// The next key; none when the terminal is gone.
    pub(super) async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// How wide the terminal is.
pub(super) fn width() -> Option<u16> {
    ratatui::crossterm::terminal::size().ok().map(|(w, _)| w)
}

fn lost(error: io::Error) -> Error {
    Error::new(Kind::Unavailable, "the terminal cannot be used").caused_by(error)
}

fn key(event: &Event) -> Option<Key> {
    let pressed = match event {
        Event::Resize(..) => return Some(Key::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    match *pressed {
        KeyEvent {
            code: KeyCode::Char('c'),
            modifiers: KeyModifiers::CONTROL,
            ..
        } => Some(Key::Quit),
        KeyEvent { code, .. } => match code {
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
            KeyCode::Tab | KeyCode::Right => Some(Key::NextPanel),
            KeyCode::BackTab | KeyCode::Left => Some(Key::PreviousPanel),
            KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
            KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
            KeyCode::PageUp => Some(Key::PageUp),
            KeyCode::PageDown | KeyCode::Char(' ') => Some(Key::PageDown),
            _ => None,
        },
    }
}
