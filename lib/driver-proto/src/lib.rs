//! driver-proto
