//! How the loops and threads of a server are started, and how its process ends when one of them is dead.

use std::{panic::AssertUnwindSafe, sync::Arc, thread, time::Duration};

use futures::FutureExt as _;
use tokio::{runtime::Handle, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    loops::Loop,
    progress::{Progress, Turns, guarded, said},
};

/// Exit code of a process that ended because a part of its server was broken: "internal software error".
const BROKEN: i32 = 70;

/// Starts everything that runs in the background, and knows when it has to end.
#[derive(Debug)]
pub(crate) struct Runner {
    progress: Progress,
    stopping: CancellationToken,
    /// Everything that was spawned, to be waited for at the end.
    tasks: TaskTracker,
    /// Why the process has to end.
    fatal: watch::Sender<Option<String>>,
    /// End the process when a part is broken; else that is told only.
    end_process: bool,
    /// Where everything runs; None = where it is spawned.
    runtime: Option<Handle>,
}

impl Runner {
    /// Nothing runs yet.
    pub(crate) fn new(end_process: bool, runtime: Option<Handle>) -> Self {
        Self {
            runtime,
            progress: Progress::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            fatal: watch::Sender::new(None),
            end_process,
        }
    }

    /// What each loop does.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// What a loop tells of itself.
    pub(crate) fn turns(&self, of: &'static Loop) -> Arc<Turns> {
        self.progress.turns(of)
    }

    /// Cancelled when the server stops.
    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Starts something short that ends by itself.
    pub(crate) fn spawn(&self, run: impl Future<Output = ()> + Send + 'static) {
        match &self.runtime {
            Some(runtime) => self.tasks.spawn_on(run, runtime),
            None => self.tasks.spawn(run),
        };
    }

    /// Starts a loop on the runtime. Its end before that of the server is the end of the process.
    pub(crate) fn spawn_loop(self: &Arc<Self>, of: &'static Loop, run: impl Future<Output = ()> + Send + 'static) {
        let own = self.clone();
        self.progress.starts(of);
        self.spawn(AssertUnwindSafe(run).catch_unwind().map(move |ended| match ended {
            Ok(()) if own.stopping.is_cancelled() => {}
            Ok(()) => own.broken(of.name, "has ended by itself"),
            Err(panic) => own.broken(of.name, &format!("has panicked: {}", said(&*panic))),
        }));
    }

    /// Starts something that may end, but not by a panic.
    pub(crate) fn spawn_guarded(self: &Arc<Self>, of: &'static Loop, run: impl Future<Output = ()> + Send + 'static) {
        let own = self.clone();
        self.spawn(AssertUnwindSafe(run).catch_unwind().map(move |ended| {
            if let Err(panic) = ended {
                own.broken(of.name, &format!("has panicked: {}", said(&*panic)));
            }
        }));
    }

    /// Starts a thread that may end, but not by a panic: then `part` is broken.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn thread(
        self: &Arc<Self>,
        part: &'static str,
        builder: thread::Builder,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<thread::JoinHandle<()>> {
        let own = self.clone();
        builder.spawn(move || {
            if let Err(why) = guarded(run) {
                own.broken(part, &why);
            }
        })
    }

    /// A part of the server is dead or stands still: the process ends here when it is the server's to end.
    pub(crate) fn broken(&self, part: &str, why: &str) {
        let reason = format!(
            "the server's {part} {why}; the process ends, so that a new one begins with what is on the disk; nodes \
                and their tasks run on"
        );
        tracing::error!(part, why, "a part of the server is broken");
        self.fatal(reason.clone());
        if self.end_process {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "drover agent: {reason}");
            std::process::exit(BROKEN);
        }
    }

    /// The process has to end; the first reason counts.
    pub(crate) fn fatal(&self, why: String) {
        self.fatal.send_if_modified(|fatal| {
            let first = fatal.is_none();
            if first {
                *fatal = Some(why);
            }
            first
        });
    }

    /// Resolves with the reason why the process has to end. Cancel safe.
    pub(crate) async fn failed(&self) -> String {
        let mut fatal = self.fatal.subscribe();
        let why = fatal.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            None => std::future::pending().await,
        }
    }

    /// Waits for everything that was spawned; false when it has not ended in time.
    pub(crate) async fn ended(&self, patience: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(patience, self.tasks.wait()).await.is_ok()
    }
}
