//! Acceptance scenarios.
