//! executor-client
