//! Answers and refusals.

use std::fmt;

use api::{go_json, paging::PageError, query::QueryError};
use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, LOCATION},
};
use serde::Serialize;

use server::error::{ErrorClass, Kind, Refused, ServerError};

pub(crate) const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
pub(crate) const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
pub(crate) const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");
pub(crate) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");

/// An answer.
pub(crate) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
}

impl Reply {
    /// JSON.
    pub(crate) fn json<T: Serialize + ?Sized>(value: &T, pretty: bool) -> Result<Self, HttpError> {
        let mut bytes = go_json::to_vec(value, pretty)
            .map_err(|e| HttpError::internal(format_args!("writing the answer failed: {e}")))?;
        if pretty {
            bytes.push(b'\n');
        }
        Ok(Self::bytes("application/json", bytes))
    }

    pub(crate) fn bytes(content_type: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self::body(content_type, Body::from(bytes.into()))
    }

    pub(crate) fn body(content_type: &'static str, body: Body) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self { status: StatusCode::OK, headers, body }
    }

    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Body::empty() }
    }

    pub(crate) fn redirect(status: StatusCode, to: &str) -> Self {
        let mut reply = Self::empty(status);
        if let Ok(to) = HeaderValue::from_str(to) {
            reply.headers.insert(LOCATION, to);
        }
        reply
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The headers of a read.
    pub(crate) fn read_at(mut self, index: u64) -> Self {
        read_headers(&mut self.headers, index);
        self
    }

    /// The headers of a write.
    pub(crate) fn written_at(mut self, index: u64) -> Self {
        self.headers.insert(INDEX, HeaderValue::from(index));
        self
    }

    /// There is a further page.
    pub(crate) fn next_token(mut self, token: Option<&str>) -> Self {
        if let Some(value) = token.and_then(|t| HeaderValue::from_str(t).ok()) {
            self.headers.insert(NEXT_TOKEN, value);
        }
        self
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// The same answer with another body.
    pub(crate) fn map_body(self, f: impl FnOnce(Body) -> Body) -> Self {
        Self { body: f(self.body), ..self }
    }

    /// An answer of another part of the agent, as it is.
    pub(crate) fn foreign(response: Response<Body>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status, headers: head.headers, body }
    }
}

/// As of a server that leads: answers are never older than the snapshot that they come from. Where it does not,
/// `Contact` says so instead.
fn read_headers(headers: &mut HeaderMap, index: u64) {
    // 0 while there has been nothing to read, which clients know from Nomad.
    headers.insert(INDEX, HeaderValue::from(index));
    headers.insert(KNOWN_LEADER, HeaderValue::from_static("true"));
    headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
}

/// Why a request is refused, for the audit log. Only texts that hold nothing of a body stand here.
#[derive(Clone, Debug)]
pub(crate) struct Why(pub(crate) String);

/// Texts of these hold nothing of a request's body.
fn tells(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 405 | 429 | 501 | 503)
}

/// A refusal: plain text with a status.
#[derive(Debug)]
pub(crate) struct HttpError {
    status: StatusCode,
    text: String,
    index: Option<u64>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, text: impl fmt::Display) -> Self {
        Self { status, text: text.to_string(), index: None, header: None }
    }
    pub(crate) fn bad_request(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
    pub(crate) fn not_found(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }
    pub(crate) fn internal(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
    /// A feature that this release does not have, by name and with the reason.
    pub(crate) fn unsupported(feature: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format_args!("not supported by this release: {feature}; {reason}"))
    }
    /// With the headers of a read: blocking queries also wait for what does not exist yet.
    pub(crate) fn read_at(mut self, index: u64) -> Self {
        self.index = Some(index);
        self
    }
    /// With a header of its own.
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }
    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let why = (tells(self.status) && !self.text.is_empty()).then(|| Why(self.text.clone()));
        let mut response = Response::new(if self.text.is_empty() { Body::empty() } else { Body::from(self.text) });
        *response.status_mut() = self.status;
        if let Some(why) = why {
            response.extensions_mut().insert(why);
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(index) = self.index {
            read_headers(headers, index);
        }
        headers.extend(self.header);
        response
    }
}

impl From<QueryError> for HttpError {
    fn from(e: QueryError) -> Self {
        Self::bad_request(e)
    }
}

impl From<PageError> for HttpError {
    fn from(e: PageError) -> Self {
        Self::bad_request(e)
    }
}

impl From<ServerError> for HttpError {
    fn from(e: ServerError) -> Self {
        let status = match (&e, e.class()) {
            (ServerError::Refused(Refused::RegistrationDisabled(_)), _) => StatusCode::FORBIDDEN,
            (ServerError::Refused(Refused::TooLarge(_)), _) => StatusCode::PAYLOAD_TOO_LARGE,
            (ServerError::Refused(Refused::Connected { .. }), _) => StatusCode::CONFLICT,
            (ServerError::Refused(Refused::BadRequest(_) | Refused::NotFound { kind: Kind::Group, .. }), _) => {
                StatusCode::BAD_REQUEST
            }
            (ServerError::Refused(Refused::NotFound { kind: Kind::Service, .. }), _) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            (_, ErrorClass::NotFound) => StatusCode::NOT_FOUND,
            // Clients repeat a request that fails with more than 500.
            (_, ErrorClass::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
            // What the servers find wrong, the validation of a job included, is a 500: only what this layer cannot
            // read is a 400.
            (_, ErrorClass::Invalid | ErrorClass::Conflict | ErrorClass::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, e)
    }
}
