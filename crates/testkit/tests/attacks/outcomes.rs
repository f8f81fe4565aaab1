//! Calls whose outcome is unknown: repeated, late, or cut off.
