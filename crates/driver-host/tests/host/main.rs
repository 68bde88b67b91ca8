//! The host against real plugin processes, good and bad.

mod bad_plugins;
mod bench;
mod go;
mod hostile;
mod life;
mod reattach;
mod reload;
mod remote;
mod sdk;
mod support;
