//! Reading the output of an instance.

use std::time::Duration;

use executor_proto::host::{HOST_CHUNK, HostChunk, HostLogs, host_reply::Body};

use super::call::Call;
use super::refusal::{Answer, unclear};
use super::runtime::Runtime;
use super::wake::Wake;

/// Some file systems send no events, and kernels before 6.8 send none for spliced data of older executors. This bounds
/// a follower's delay then.
const SILENCE: Duration = Duration::from_millis(200);

/// Sends bytes until the end of the log, or until the call is cancelled.
pub(super) fn send(runtime: &Runtime, request: &HostLogs, call: &Call) -> Answer<()> {
    let (place, intent) = runtime.find(&request.key)?;
    let log = place.log(&format!("{}.{}", intent.task_name, if request.stderr { "stderr" } else { "stdout" }));
    let wake = Wake::new();
    wake.add(log.dir());
    let mut offset = None;
    while !call.is_cancelled() {
        if !log.dir().exists() {
            // Not started yet, or gone since.
            runtime.find(&request.key)?;
            if !request.follow {
                return Ok(());
            }
            std::thread::sleep(SILENCE);
            wake.add(log.dir());
            continue;
        }
        let at = match offset {
            Some(at) => at,
            None if request.from_end => {
                log.end().map_err(unclear("read the log in", log.dir()))?.saturating_sub(request.offset)
            }
            None => request.offset,
        };
        let chunk = log.read(at, HOST_CHUNK).map_err(unclear("read the log in", log.dir()))?;
        if chunk.data.is_empty() {
            if !request.follow {
                return Ok(());
            }
            offset = Some(at);
            wake.wait(SILENCE);
            continue;
        }
        offset = Some(chunk.offset + chunk.data.len() as u64);
        let length = chunk.data.len() as u64;
        call.send_data(length, Body::Chunk(HostChunk { offset: chunk.offset, data: chunk.data, file: chunk.file }));
    }
    Ok(())
}
