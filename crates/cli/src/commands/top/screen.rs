//! Panels on a screen of any size: each gets what it needs if there is room, and otherwise the one
//! that was chosen gets more.

use changefeed::view::Status;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row, Table, Widget};

use super::panels::{Panel, Tone, panels, rate};
use super::terminal::Key;

/// Which panel was chosen, and how far each is scrolled.
#[derive(Debug, Default)]
pub(super) struct View {
    chosen: usize,
    scrolled: Vec<usize>,
    /// The rows that were to be seen of the chosen one.
    page: usize,
}

impl View {
    pub(super) fn press(&mut self, key: Key, screen: &Screen<'_>) {
        let panels = screen.panels.len().max(1);
        self.chosen = self.chosen.min(panels - 1);
        self.scrolled.resize(panels, 0);
        let scrolled = &mut self.scrolled[self.chosen];
        match key {
            Key::NextPanel => self.chosen = (self.chosen + 1) % panels,
            Key::PreviousPanel => self.chosen = (self.chosen + panels - 1) % panels,
            Key::Up => *scrolled = scrolled.saturating_sub(1),
            Key::Down => *scrolled += 1,
            Key::PageUp => *scrolled = scrolled.saturating_sub(self.page.max(1)),
            Key::PageDown => *scrolled += self.page.max(1),
            Key::Quit | Key::Resized => {}
        }
    }
}

/// What is drawn.
pub(super) struct Screen<'a> {
    place: &'a str,
    status: &'a Status,
    error: Option<&'a str>,
    panels: Vec<Panel>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(place: &'a str, status: &'a Status, error: Option<&'a str>) -> Self {
        Screen {
            place,
            status,
            error,
            // Before the first look nothing is known, which is not the same as nothing.
            panels: match status.sampled_at {
                Some(_) => panels(status),
                None => Vec::new(),
            },
        }
    }

    pub(super) fn draw(&self, view: &mut View, area: Rect, buffer: &mut Buffer) {
        let [head, body, foot] = [
            Rect {
                height: area.height.min(1),
                ..area
            },
            Rect {
                y: area.y + 1.min(area.height),
                height: area.height.saturating_sub(2),
                ..area
            },
            Rect {
                y: area.bottom().saturating_sub(1),
                height: area.height.saturating_sub(1).min(1),
                ..area
            },
        ];
        self.head(usize::from(area.width)).render(head, buffer);
        view.scrolled.resize(self.panels.len(), 0);
        view.chosen = view.chosen.min(self.panels.len().saturating_sub(1));
        let needs: Vec<usize> = self.panels.iter().map(|p| p.rows.len()).collect();
        let room = share(usize::from(body.height), &needs, view.chosen);
        let gap =
            u16::from(room.iter().sum::<usize>() + 2 * needs.len() <= usize::from(body.height));
        let mut y = body.y;
        for (at, (panel, rows)) in self.panels.iter().zip(room).enumerate() {
            if y >= body.bottom() {
                break;
            }
            let height = (rows_u16(rows) + 1).min(body.bottom() - y);
            // Not further than to the last row.
            let last = panel.rows.len().saturating_sub(rows);
            view.scrolled[at] = view.scrolled[at].min(last);
            if at == view.chosen {
                view.page = rows;
            }
            let part = Part {
                panel,
                from: view.scrolled[at],
                rows,
                chosen: at == view.chosen && self.panels.len() > 1,
            };
            part.table().render(Rect { y, height, ..body }, buffer);
            y += height + gap;
        }
        let keys = "q quits   Tab next panel   ↑↓ scroll";
        Line::styled(keys, Style::new().add_modifier(Modifier::DIM)).render(foot, buffer);
    }

    /// Everything, as lines of text.
    pub(super) fn print(&self, width: u16) -> Vec<String> {
        let rows: usize = self.panels.iter().map(|p| p.rows.len() + 2).sum();
        let area = Rect::new(0, 0, width, rows_u16(rows) + 2);
        let mut buffer = Buffer::empty(area);
        self.draw(&mut View::default(), area, &mut buffer);
        // The last line tells keys, which nobody can press here.
        let line = |y: u16| -> String {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        let mut lines: Vec<String> = (0..area.height - 1).map(line).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    fn head(&self, width: usize) -> Line<'_> {
        if let Some(error) = self.error {
            return Line::styled(error.to_owned(), tone(Tone::Bad));
        }
        let rates: Vec<f64> = self.status.feeds.iter().filter_map(|f| f.rate).collect();
        let total = (!rates.is_empty()).then(|| rates.iter().sum());
        let dead: i64 = self
            .status
            .triggers
            .iter()
            .map(|t| t.state.dead_letters)
            .sum();
        let parked: i64 = self.status.watches.iter().map(|w| w.status.parked).sum();
        // The time of the day, to the second.
        let looked = match self.status.sampled_at.as_deref() {
            Some(at) => at.get(11..19).unwrap_or(at),
            None => "no look yet",
        };
        let said = format!(
            "changefeed  {} changes/s  {dead} dead letters  {parked} parked  {looked}",
            rate(total)
        );
        // What tells databases apart is at the end of their addresses.
        let room = width.saturating_sub(said.chars().count() + 2);
        let place = match self.place.chars().count().checked_sub(room) {
            None | Some(0) => self.place.to_owned(),
            Some(_) if room < 2 => String::new(),
            Some(over) => format!("…{}", self.place.chars().skip(over + 1).collect::<String>()),
        };
        let style = Style::new().add_modifier(Modifier::BOLD);
        Line::styled(format!("{said}  {place}"), style)
    }
}

fn rows_u16(rows: usize) -> u16 {
    u16::try_from(rows).unwrap_or(u16::MAX - 4)
}

/// How many rows each panel gets besides its title: two at first, the rest to the chosen one until it
/// has enough, and then to the others in turn.
fn share(height: usize, needs: &[usize], chosen: usize) -> Vec<usize> {
    let mut left = height.saturating_sub(needs.len());
    let mut given = vec![0; needs.len()];
    let mut give = |at: usize, most: usize, given: &mut Vec<usize>| {
        let more = needs[at].min(most).saturating_sub(given[at]).min(left);
        given[at] += more;
        left -= more;
    };
    let order: Vec<usize> = (chosen..needs.len())
        .chain(0..chosen.min(needs.len()))
        .collect();
    for most in [2, usize::MAX] {
        for at in &order {
            give(*at, most, &mut given);
        }
    }
    given
}

/// The rows of a panel that are to be seen.
struct Part<'a> {
    panel: &'a Panel,
    from: usize,
    rows: usize,
    chosen: bool,
}

impl Part<'_> {
    fn table(&self) -> Table<'_> {
        let Panel {
            title,
            columns,
            rows,
        } = self.panel;
        let to = (self.from + self.rows).min(rows.len());
        let title = match rows.len() {
            0 => format!("{title} none yet"),
            all if all > self.rows => format!("{title} {}–{to} of {all}", self.from + 1),
            _ => (*title).to_owned(),
        };
        let mut style = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        if !self.chosen {
            style = style.add_modifier(Modifier::DIM);
        }
        let head = std::iter::once(Cell::new(title)).chain(columns.iter().map(|c| right(*c)));
        let widths = std::iter::once(Constraint::Fill(1)).chain((0..columns.len()).map(|at| {
            let texts = rows.iter().map(|row| row[at + 1].text.chars().count());
            let most = texts.chain([columns[at].chars().count()]).max();
            Constraint::Length(most.map_or(0, rows_u16).min(40))
        }));
        let shown = rows[self.from..to].iter().map(|row| {
            let cells = row.iter().enumerate().map(|(at, cell)| {
                let text = cell.text.clone();
                let shown = if at == 0 {
                    Cell::new(text)
                } else {
                    right(text)
                };
                shown.style(tone(cell.tone))
            });
            Row::new(cells)
        });
        Table::new(shown, widths)
            .header(Row::new(head).style(style))
            .column_spacing(2)
    }
}

fn right<'a>(text: impl Into<Text<'a>>) -> Cell<'a> {
    Cell::new(text.into().alignment(Alignment::Right))
}

fn tone(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Quiet => Style::new().add_modifier(Modifier::DIM),
        // Also where there are no colours.
        Tone::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}
