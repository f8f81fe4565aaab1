//! The dashboard in a real browser, on its main journeys. Screenshots of them stay under `target`.

mod browser;
mod looking;
mod operating;
mod people;
mod stage;
