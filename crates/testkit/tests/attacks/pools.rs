//! A pool of one connection, frozen sessions and poolers in between.
