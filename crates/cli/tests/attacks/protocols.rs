//! Clients of the open feed protocols at the edges of what they may ask.
