//! executor-proto
