//! Benches; see `run`.
