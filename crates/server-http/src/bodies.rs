//! The room that the bodies of requests have while they arrive and are read: of all requests together. Whoever sends
//! large bodies slowly fills it, and delays others that send large ones; no memory beyond it is taken.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::reply::HttpError;

/// Bodies up to this size have a room of their own, which large ones cannot fill.
pub(crate) const SMALL: usize = 64 << 10;
/// The room of small ones: for a thousand of them.
const SMALL_ROOM: usize = 64 << 20;
/// Room is given in pieces of this size.
const PIECE: usize = 1 << 10;
/// How long a body waits for room. Clients ask again after the other time, in seconds.
const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: u16 = 5;

/// The room for bodies.
pub(crate) struct Bodies {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Bytes of the room for large ones.
    room: usize,
}

/// A body that is there, or its beginning, with the room that it takes.
#[derive(Default)]
struct Held {
    data: Vec<u8>,
    small: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Bodies {
    /// Room for large bodies of this many bytes together.
    pub(crate) fn new(room: usize) -> Self {
        let semaphore = |bytes: usize| Arc::new(Semaphore::new(bytes.div_ceil(PIECE).min(Semaphore::MAX_PERMITS)));
        Self { small: semaphore(SMALL_ROOM), large: semaphore(room), room }
    }

    /// The whole body. Its room is free again when the last copy of the bytes is gone.
    pub(crate) async fn collect(&self, mut body: Body, limit: usize) -> Result<Bytes, HttpError> {
        let mut held = Held::default();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|e| HttpError::bad_request(format_args!("reading the request's body failed: {e}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let size = held.data.len() + data.len();
            if size > limit {
                return Err(HttpError::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format_args!("the request's body is larger than the limit of {limit} bytes"),
                ));
            }
            self.make_room(&mut held, size, limit).await?;
            held.data.extend_from_slice(&data);
        }
        Ok(Bytes::from_owner(held))
    }

    /// Takes room before memory.
    async fn make_room(&self, held: &mut Held, size: usize, limit: usize) -> Result<(), HttpError> {
        let capacity = held.data.capacity();
        if size <= capacity {
            return Ok(());
        }
        let wanted = size.max(capacity.saturating_mul(2).min(limit)).max(PIECE);
        if wanted <= SMALL {
            self.take(&self.small, &mut held.small, wanted).await?;
        } else {
            self.take(&self.large, &mut held.large, wanted).await?;
            held.small = None;
        }
        held.data.reserve_exact(wanted - held.data.len());
        Ok(())
    }

    async fn take(
        &self,
        room: &Arc<Semaphore>,
        held: &mut Option<OwnedSemaphorePermit>,
        wanted: usize,
    ) -> Result<(), HttpError> {
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(wanted.div_ceil(PIECE).saturating_sub(has)).unwrap_or(u32::MAX);
        let Ok(Ok(more)) = tokio::time::timeout(PATIENCE, room.clone().acquire_many_owned(more)).await else {
            let full = if Arc::ptr_eq(room, &self.small) { SMALL_ROOM } else { self.room };
            let full = full.div_ceil(1 << 20);
            return Err(HttpError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format_args!(
                    "there is no room for the request's body: other bodies take the {full} MiB that they may take \
                        together; send the request again after {AGAIN} s"
                ),
            )
            .with_header(RETRY_AFTER, HeaderValue::from(AGAIN)));
        };
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn room_comes_back_with_the_last_copy() {
        let bodies = Bodies::new(1 << 20);
        let pieces = |size: usize| {
            let pieces = vec![b'x'; size].chunks(1000).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
            Body::from_stream(stream::iter::<Vec<_>>(pieces))
        };
        let (small, large) = (bodies.small.available_permits(), bodies.large.available_permits());
        for (size, of_small, of_large) in [(0, 0, 0), (1, 1, 0), (50_000, 64, 0), (70_000, 0, 128), (900_000, 0, 1024)]
        {
            let whole = bodies.collect(pieces(size), 1 << 20).await.expect("room");
            let copy = whole.clone();
            drop(whole);
            assert_eq!(copy.len(), size);
            let taken = (small - bodies.small.available_permits(), large - bodies.large.available_permits());
            assert_eq!(taken, (of_small, of_large), "{size}");
            drop(copy);
            let free = (bodies.small.available_permits(), bodies.large.available_permits());
            assert_eq!(free, (small, large), "{size}");
        }
        let over = bodies.collect(pieces(1001), 1000).await.expect_err("too large");
        assert_eq!(over.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
