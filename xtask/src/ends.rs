//! A run ends before its time when somebody asks for that: what is under way may end, and everything of it is removed.

use std::{
    future,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

/// Somebody has asked for the end of the run.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Whether somebody has asked for the end of the run.
pub(crate) fn asked() -> bool {
    ENDS.load(Relaxed)
}

/// SIGINT and SIGTERM ask for the end of the run, and so does its time, where it has one. `told`: what is said then,
/// after the reason.
pub(crate) fn watch(time: Option<Duration>, told: &'static str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminate = {
        let _inside = runtime.enter();
        signal(SignalKind::terminate())?
    };
    thread::spawn(move || {
        runtime.block_on(async {
            let over = async {
                match time {
                    Some(time) => tokio::time::sleep(time).await,
                    None => future::pending().await,
                }
            };
            let why = tokio::select! {
                _ = tokio::signal::ctrl_c() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                () = over => "the time is up",
            };
            eprintln!("{why}: {told}");
            ENDS.store(true, Relaxed);
        });
    });
    Ok(())
}
