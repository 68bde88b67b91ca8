//! Answers that go on: raw bytes, frames without a separator, a JSON object per line.

use std::marker::PhantomData;

use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::{Body, ClientError, Connection, Meta};
use crate::{go_json, shapes::StreamFrame};

/// Most bytes of one JSON object in a stream.
const MAX_OBJECT: usize = 64 << 20;

/// The bytes of an answer as they come.
#[derive(Debug)]
pub struct BodyStream {
    method: Method,
    path: String,
    meta: Meta,
    body: Incoming,
    // Dropping the sender would end the connection.
    _connection: Connection<Body>,
}

impl BodyStream {
    pub(super) fn new(
        method: Method,
        path: String,
        response: Response<Incoming>,
        connection: Connection<Body>,
    ) -> Self {
        Self::with_head(method, path, response, connection).into_body()
    }

    /// The same with the head of the response.
    pub(super) fn with_head(
        method: Method,
        path: String,
        response: Response<Incoming>,
        connection: Connection<Body>,
    ) -> Response<Self> {
        let meta = Meta::of(response.headers());
        response.map(|body| Self { method, path, meta, body, _connection: connection })
    }

    /// Metadata of the response.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// All that is left, for answers that end.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn whole(mut self) -> Result<Vec<u8>, ClientError> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// The next bytes; None at the end. Cancel safe.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|source| ClientError::Broken {
                method: self.method.clone(),
                path: self.path.clone(),
                source,
            })?;
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Log and file frames; heartbeats are left out.
    #[must_use]
    pub fn frames(self) -> Frames {
        Frames(self.json())
    }

    /// JSON objects one after the other, with or without separators.
    #[must_use]
    pub fn json<T: DeserializeOwned>(self) -> JsonStream<T> {
        JsonStream { stream: self, buffer: BytesMut::new(), kind: PhantomData }
    }
}

/// JSON objects one after the other.
#[derive(Debug)]
pub struct JsonStream<T> {
    stream: BodyStream,
    buffer: BytesMut,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> JsonStream<T> {
    /// The next object; None at the end. Cancel safe.
    ///
    /// # Errors
    /// When the connection breaks, or something else than JSON comes: a plain-text error in the middle of a stream
    /// becomes [`ClientError::Status`] with its text.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(value) = self.buffered()? {
                return Ok(Some(value));
            }
            match self.stream.next().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Err(self.foreign()),
            }
        }
    }

    /// An object that is complete in the buffer.
    fn buffered(&mut self) -> Result<Option<T>, ClientError> {
        let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.buffer.advance(blank);
        if self.buffer.is_empty() {
            return Ok(None);
        }
        if self.buffer[0] != b'{' {
            // Servers report failures after the headers as text: wait for all of it.
            return Ok(None);
        }
        let mut values = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<serde_json::Value>();
        match values.next() {
            Some(Ok(value)) => {
                let used = values.byte_offset();
                self.buffer.advance(used);
                go_json::from_value(value).map(Some).map_err(|source| self.answer(source))
            }
            Some(Err(e)) if e.is_eof() && self.buffer.len() < MAX_OBJECT => Ok(None),
            Some(Err(e)) => Err(self.answer(go_json::Error::Syntax(e))),
            None => Ok(None),
        }
    }

    fn answer(&self, source: go_json::Error) -> ClientError {
        ClientError::Answer { method: self.stream.method.clone(), path: self.stream.path.clone(), source }
    }

    fn foreign(&self) -> ClientError {
        let message = String::from_utf8_lossy(&self.buffer).trim().to_owned();
        ClientError::Status { status: http::StatusCode::OK, message }
    }
}

/// Log and file frames.
#[derive(Debug)]
pub struct Frames(JsonStream<StreamFrame>);

impl Frames {
    /// The next frame with content; None at the end. Cancel safe.
    ///
    /// # Errors
    /// As [`JsonStream::next`].
    pub async fn next(&mut self) -> Result<Option<StreamFrame>, ClientError> {
        loop {
            match self.0.next().await? {
                Some(frame) if frame.is_heartbeat() => {}
                other => return Ok(other),
            }
        }
    }
}
