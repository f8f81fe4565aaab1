//! The dashboard in a real browser, on its main journeys. Screenshots of them stay under `target`.

mod accessible;
mod browser;
mod defining;
mod looking;
mod operating;
mod people;
mod stage;
