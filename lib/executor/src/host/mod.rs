//! `drover-executor serve-host <root> <nonce>`: the runtime of one host, for one manager at the other end of standard
//! input and output.
//!
//! Durable state lies below `root`; the end of this process loses nothing. Managers come and go, several at once, each
//! with such a process, locally or over ssh. They decide under locks in `root`. A workload is never a child of this
//! process.
//!
//! ```text
//! <root>/provider-id                      identity of this runtime, made once
//! <root>/executors/                       executors, by content hash
//! <root>/uploads/                         files on their way
//! <root>/instances/<key>/                 locked while the instance is made, sealed or retired
//!                        instance.json    the intent: key, owner, slot
//!                        executor/        state directory of the executor
//!                        task/            working directory, with the files of the bundle
//!                        logs/            rotated output
//!                        retired          acknowledged or sealed; executor/ stays and bars another start
//! ```
//!
//! Unlike executors it uses threads, one for each request: there is one such process per manager and host, not one per
//! task. Begin reading at `runtime::Runtime::ensure`.

mod beside;
mod call;
mod channel;
mod controller;
mod files;
mod logs;
mod place;
mod prepare;
mod refusal;
mod runtime;
mod wake;
mod watch;

pub use channel::main;
