//! driver-sdk
