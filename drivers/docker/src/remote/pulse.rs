//! Whether the engine answers, for as long as somebody watches instances.
//!
//! Events tell of a break of their connection, but not of an engine that stands still or of an address that nothing
//! answers at any more. So the engine is asked now and then what a look at instances would ask.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::names::LABEL_KEY;
use crate::engine::types::Listed;
use crate::engine::{Engine, filters};

/// Time between two questions.
const EVERY: Duration = Duration::from_secs(4);
/// An engine that has answered nothing for so long is silent.
const PATIENCE: Duration = Duration::from_secs(12);

/// Why the engine is silent; `None` while it answers.
pub(super) type Silence = Option<String>;

/// Asks until it is dropped.
pub(super) struct Pulse {
    silence: Arc<watch::Sender<Silence>>,
    asking: tokio::task::JoinHandle<()>,
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

impl Pulse {
    pub(super) fn start(engine: Arc<Engine>) -> Self {
        let silence = Arc::new(watch::Sender::new(None));
        let told = silence.clone();
        let asking = tokio::spawn(async move {
            let mut heard = Instant::now();
            loop {
                tokio::time::sleep(EVERY).await;
                if told.receiver_count() == 0 {
                    heard = Instant::now();
                    told.send_replace(None);
                    continue;
                }
                match ask(&engine).await {
                    Ok(()) => {
                        heard = Instant::now();
                        told.send_if_modified(|silence| silence.take().is_some());
                    }
                    Err(why) if heard.elapsed() >= PATIENCE => {
                        told.send_if_modified(|silence| silence.replace(why).is_none());
                    }
                    Err(_) => {}
                }
            }
        });
        Self { silence, asking }
    }

    /// What is known from now on.
    pub(super) fn silence(&self) -> watch::Receiver<Silence> {
        self.silence.subscribe()
    }
}

async fn ask(engine: &Engine) -> Result<(), String> {
    let path = format!("/containers/json?all=true&limit=1&filters={}", filters(&[("label", LABEL_KEY)]));
    let within = PATIENCE - EVERY;
    match tokio::time::timeout(within, engine.get::<Vec<Listed>>("see whether the engine answers", &path)).await {
        Ok(answered) => answered.map(drop).map_err(|why| why.to_string()),
        Err(_) => Err(format!("the engine at {} has not answered within {} s", engine.endpoint(), within.as_secs())),
    }
}
