//! Clocks that step back and forward.
