//! The driver with an API server in memory; each `Driver` is one manager. What only a real API server and kubelet can
//! show is in `cargo xtask interop kubernetes`.

mod docs;
mod exec;
mod fake;
mod faults;
mod life;
mod logs;
mod watch;
