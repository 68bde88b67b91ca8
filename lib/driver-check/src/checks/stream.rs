//! Streams that must stay open, and what becomes of those that are given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_proto::driver::*;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use crate::check::table;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold};
use crate::plugin::Plugin;
use crate::procs;

table! {
    "stream/fingerprint-first", "H36", "the first fingerprint comes within a second and says how the driver is",
        "the start of every agent is held up, and jobs are not placed on the node", fingerprint_first;
    "stream/fingerprint-open", "H36", "the fingerprint stream stays open while nothing changes",
        "Nomad agents ask again at once and without a pause: a core is busy for nothing, and the \
            driver flaps", fingerprint_open;
    "stream/fingerprint-attributes", "D6", "every attribute of the fingerprint has a value and a plain name",
        "the node's attributes hold nonsense, and constraints of jobs do not match", fingerprint_attributes;
    "stream/events-open", "H36", "the stream of task events stays open with no events",
        "Nomad agents ask again at once and without a pause", events_open;
    "stream/stdio-open", "A5", "the stream of captured output stays open, or the service is not offered",
        "hosts reopen it again and again", stdio_open;
    "stream/cancel", "H36", "streams that are cancelled cost nothing afterwards",
        "each reconnection of an agent leaves something behind in the plugin until it dies", cancel;
}

/// Opens a stream whose headers may come with its first message only.
async fn first<T>(
    lab: &Lab,
    what: &str,
    opening: impl Future<Output = Result<tonic::Response<Streaming<T>>, Status>>,
) -> Outcome<(Streaming<T>, T, Duration)> {
    let begun = Instant::now();
    let limit = lab.pace().patience;
    let opened = async {
        let mut stream = opening.await?.into_inner();
        let item = stream.message().await?;
        Ok::<_, Status>((stream, item))
    };
    match timeout(limit, opened).await {
        Err(_) => failed(format!("{what} sent nothing within {limit:?}")),
        Ok(Err(status)) => failed(format!("{what} ended with {:?}: {}", status.code(), status.message())),
        Ok(Ok((_, None))) => failed(format!("{what} ended before it sent anything")),
        Ok(Ok((stream, Some(item)))) => Ok((stream, item, begun.elapsed())),
    }
}

/// Nothing must end this within the time that is watched; messages may come.
async fn stays<T>(
    lab: &Lab,
    what: &str,
    opening: impl Future<Output = Result<tonic::Response<Streaming<T>>, Status>>,
) -> Outcome {
    let watched = async {
        let mut stream = opening.await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    match timeout(lab.pace().hold, watched).await {
        Err(_) => Ok(()),
        Ok(Ok(())) => failed(format!("{what} was ended by the plugin within {:?}", lab.pace().hold)),
        Ok(Err(status)) => failed(format!("{what} ended with {:?}: {}", status.code(), status.message())),
    }
}

async fn fingerprint_first(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let (_open, seen, took) = first(lab, "Fingerprint", plugin.driver().fingerprint(FingerprintRequest {})).await?;
    hold!(
        fingerprint_response::HealthState::try_from(seen.health).is_ok(),
        "its health is {}, which has no meaning",
        seen.health
    );
    hold!(seen.err.is_empty(), "it reports the error {:?}", seen.err);
    let limit = lab.pace().limit(Duration::from_secs(1));
    hold!(took <= limit, "the first fingerprint came after {took:?}, expected is at most {limit:?}");
    Ok(())
}

async fn fingerprint_open(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    stays(lab, "Fingerprint", plugin.driver().fingerprint(FingerprintRequest {})).await
}

async fn fingerprint_attributes(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let (_open, seen, _) = first(lab, "Fingerprint", plugin.driver().fingerprint(FingerprintRequest {})).await?;
    for (name, attribute) in &seen.attributes {
        let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic());
        hold!(plain, "an attribute is called {name:?}");
        hold!(attribute.value.is_some(), "attribute {name:?} has no value");
    }
    Ok(())
}

async fn events_open(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    stays(lab, "TaskEvents", plugin.driver().task_events(TaskEventsRequest {})).await
}

async fn stdio_open(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let opening = async { plugin.stdio().stream_stdio(()).await };
    let watched = async {
        let mut stream = opening.await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    match timeout(lab.pace().hold, watched).await {
        Err(_) => Ok(()),
        Ok(Err(status)) if matches!(status.code(), Code::Unimplemented | Code::Unavailable) => {
            lab.still_works(&plugin, "StreamStdio").await
        }
        Ok(Err(status)) => failed(format!("StreamStdio ended with {:?}: {}", status.code(), status.message())),
        Ok(Ok(())) => failed(format!("StreamStdio was ended by the plugin within {:?}", lab.pace().hold)),
    }
}

/// Opens both streams of a host and gives them up.
async fn open_and_cancel(plugin: &Plugin) {
    let brief = Duration::from_millis(20);
    let mut driver = plugin.driver();
    let looks = async {
        let mut stream = driver.fingerprint(FingerprintRequest {}).await?.into_inner();
        stream.message().await
    };
    let _ = timeout(brief, looks).await;
    let mut driver = plugin.driver();
    let events = async {
        let mut stream = driver.task_events(TaskEventsRequest {}).await?.into_inner();
        stream.message().await
    };
    let _ = timeout(Duration::from_millis(5), events).await;
}

async fn cancel(lab: &Arc<Lab>) -> Outcome {
    const ROUNDS: usize = 40;
    let plugin = lab.plugin().await?;
    for _ in 0..5 {
        open_and_cancel(&plugin).await;
    }
    let before = procs::usage(plugin.process.pid);
    for _ in 0..ROUNDS {
        open_and_cancel(&plugin).await;
    }
    // What is given up may take a moment to go.
    let grown = || {
        let after = procs::usage(plugin.process.pid);
        (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1))
    };
    let settled = || grown().0 < ROUNDS / 4 && grown().1 < ROUNDS / 2;
    let begun = Instant::now();
    while !settled() && begun.elapsed() < lab.pace().limit(Duration::from_secs(2)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (files, threads) = grown();
    hold!(
        settled(),
        "after {ROUNDS} cancelled streams the process has {files} more open files and {threads} more threads"
    );
    lab.still_works(&plugin, "cancelled streams").await
}
