//! SQLite: rows that REPLACE removes, under triggers, self references and defaults.
