//! Output by byte offset. A run directory has one file for each stream, which the compute nodes append to.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use driver_sdk::{LogChunk, RemoteError};
use tokio::sync::mpsc;

use crate::Answer;
use crate::files::open;
use crate::rights::as_owner;

const CHUNK: usize = 64 << 10;
const AGAIN: Duration = Duration::from_millis(300);

/// As [`part_of`] with the rights of whom the run directory belongs to.
fn part(path: &Path, offset: u64) -> Answer<(Vec<u8>, u64)> {
    as_owner(path.parent().unwrap_or(path), || part_of(path, offset))
}

/// One part of a file, opened anew, which makes a network file system ask the server; and the file's length.
fn part_of(path: &Path, offset: u64) -> Answer<(Vec<u8>, u64)> {
    let mut file = match open(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(why) => return Err(RemoteError::could_not_ask(format!("could not read {}: {why}", path.display()))),
    };
    let mut read = || {
        let length = file.metadata()?.len();
        let mut data = Vec::new();
        if offset < length {
            file.seek(SeekFrom::Start(offset))?;
            (&mut file).take(CHUNK as u64).read_to_end(&mut data)?;
        }
        Ok((data, length))
    };
    read()
        .map_err(|why: std::io::Error| RemoteError::could_not_ask(format!("could not read {}: {why}", path.display())))
}

/// Sends a file from an offset, and with `follow` whatever comes, until the sink is closed. With `from_end` the offset
/// counts from the end. `name` is the file's name for the receiver.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: the file cannot be read.
pub async fn send(
    path: &Path,
    name: &str,
    from: u64,
    from_end: bool,
    follow: bool,
    sink: &mpsc::Sender<LogChunk>,
) -> Answer<()> {
    let read = async |offset: u64| {
        let path = path.to_owned();
        let read = tokio::task::spawn_blocking(move || part(&path, offset)).await;
        read.unwrap_or_else(|why| Err(RemoteError::could_not_ask(why)))
    };
    let mut offset = match from_end {
        true => read(u64::MAX).await?.1.saturating_sub(from),
        false => from,
    };
    loop {
        let (data, _) = read(offset).await?;
        if !data.is_empty() {
            let length = data.len() as u64;
            if sink.send(LogChunk { offset, data, file: name.to_owned() }).await.is_err() {
                return Ok(());
            }
            offset += length;
            continue;
        }
        if !follow {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = sink.closed() => return Ok(()),
        }
    }
}
