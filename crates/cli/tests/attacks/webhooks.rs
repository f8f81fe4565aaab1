//! Receivers that close connections at the worst moment.
