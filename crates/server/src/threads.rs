//! Where the parts of a server run that work rather than wait: deciding, scheduling.

use std::{panic::AssertUnwindSafe, thread};

use futures::FutureExt as _;

use crate::progress::{guarded, said};

/// Where they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// On threads of their own: long work holds up nothing else.
    #[default]
    Own,
    /// On the runtime, as tasks: one thread and a virtual clock run everything in an order that can be repeated.
    Runtime,
}

impl Threads {
    /// Starts a part, from within a runtime; `broken` hears why it has panicked. The answer is its thread, if it has
    /// one.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        self,
        builder: thread::Builder,
        run: impl Future<Output = ()> + Send + 'static,
        broken: impl FnOnce(String) + Send + 'static,
    ) -> std::io::Result<Option<thread::JoinHandle<()>>> {
        match self {
            Self::Own => {
                let runtime = tokio::runtime::Handle::current();
                let work = move || {
                    if let Err(why) = guarded(|| runtime.block_on(run)) {
                        broken(why);
                    }
                };
                builder.spawn(work).map(Some)
            }
            Self::Runtime => {
                tokio::spawn(async move {
                    if let Err(panic) = AssertUnwindSafe(run).catch_unwind().await {
                        broken(format!("has panicked: {}", said(&*panic)));
                    }
                });
                Ok(None)
            }
        }
    }
}
