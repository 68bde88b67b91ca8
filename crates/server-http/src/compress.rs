//! gzip for whoever asks, streams included: each frame is flushed so that it arrives when it was written.

use std::io::Write as _;

use axum::body::Body;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::stream;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY},
};
use http_body_util::BodyExt;
use hyper::body::Body as _;

/// So much is compressed at a time.
const PIECE: usize = 64 << 10;

/// Does the client take gzip?
pub(crate) fn wanted(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let refused = parts.any(|p| p.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q == 0.0)));
        (name.eq_ignore_ascii_case("gzip") || name == "*") && !refused
    })
}

/// Compresses an answer with a body.
pub(crate) fn apply(mut response: Response<Body>, gzip: bool) -> Response<Body> {
    let bodiless = response.status() == StatusCode::NO_CONTENT || response.body().is_end_stream();
    if bodiless {
        return response;
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if !gzip || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.map(|body| {
        let state = Some((body, Bytes::new(), GzEncoder::new(Vec::new(), Compression::fast())));
        Body::from_stream(stream::unfold(state, |state| async move {
            let (mut body, mut rest, mut encoder) = state?;
            loop {
                // A large frame is a long time of a thread that others wait for.
                while !rest.is_empty() {
                    let piece = rest.split_to(rest.len().min(PIECE));
                    let flush = rest.is_empty() && !body.is_end_stream();
                    if let Err(e) =
                        encoder.write_all(&piece).and_then(|()| if flush { encoder.flush() } else { Ok(()) })
                    {
                        return Some((Err(axum::Error::new(e)), None));
                    }
                    if !encoder.get_ref().is_empty() {
                        let out = Bytes::from(std::mem::take(encoder.get_mut()));
                        return Some((Ok(out), Some((body, rest, encoder))));
                    }
                    tokio::task::yield_now().await;
                }
                match body.frame().await {
                    Some(Ok(frame)) => {
                        let Ok(data) = frame.into_data() else {
                            continue;
                        };
                        // A whole body of known length needs no flush in between.
                        rest = data;
                    }
                    Some(Err(e)) => return Some((Err(e), None)),
                    None => return Some((finish(encoder), None)),
                }
            }
        }))
    })
}

fn finish(encoder: GzEncoder<Vec<u8>>) -> Result<Bytes, axum::Error> {
    encoder.finish().map(Bytes::from).map_err(axum::Error::new)
}
