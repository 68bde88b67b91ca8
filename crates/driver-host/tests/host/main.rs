//! The host against real plugin processes, good and bad.

mod bad_plugins;
mod bench;
mod go;
mod life;
mod reattach;
mod remote;
mod sdk;
mod support;
