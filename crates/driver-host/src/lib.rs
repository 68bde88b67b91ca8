//! driver-host
