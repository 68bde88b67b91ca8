//! The stream of JSON objects without separators in which logs and files are followed.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// Most data of one frame.
pub(crate) const FRAME_BYTES: usize = 64 * 1024;
/// An idle stream shows that it lives.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// What a follower is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Bytes; `end` is the position behind them.
    Data { file: String, end: u64, bytes: Vec<u8> },
    /// Something happened to the file.
    Event { file: String, offset: u64, event: &'static str },
    /// Nothing for a second.
    Heartbeat,
    /// The stream cannot go on; the text is for people.
    Trouble(String),
}

/// Where a reader puts what it finds. It ends when the client has gone.
pub(crate) type Sink = mpsc::Sender<Item>;

/// A sink and the body that it fills. A slow client holds its reader back.
pub(crate) fn channel(plain: bool) -> (Sink, Body) {
    let (sink, items) = mpsc::channel(8);
    let bytes = ReceiverStream::new(items).filter_map(move |item| Some(Ok::<Bytes, Infallible>(encode(item, plain)?)));
    (sink, Body::from_stream(bytes))
}

fn encode(item: Item, plain: bool) -> Option<Bytes> {
    let value = match item {
        Item::Data { bytes, .. } if plain => return Some(bytes.into()),
        Item::Trouble(why) => return Some(why.into_bytes().into()),
        Item::Event { .. } | Item::Heartbeat if plain => return None,
        // An empty field is left out, as existing clients know it.
        Item::Data { file, end, bytes } => {
            json!({ "Data": BASE64_STANDARD.encode(bytes), "File": file, "Offset": end })
        }
        Item::Event { file, offset: 0, event } => json!({ "File": file, "FileEvent": event }),
        Item::Event { file, offset, event } => json!({ "File": file, "FileEvent": event, "Offset": offset }),
        Item::Heartbeat => return Some(Bytes::from_static(b"{}")),
    };
    Some(value.to_string().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_as_clients_know_them() {
        let data = Item::Data { file: "alloc/logs/t.stdout.0".into(), end: 6, bytes: b"hello\n".to_vec() };
        let event = Item::Event { file: "f".into(), offset: 0, event: "file deleted" };
        for (item, framed, plain) in [
            (data, Some(r#"{"Data":"aGVsbG8K","File":"alloc/logs/t.stdout.0","Offset":6}"#), Some("hello\n")),
            (event, Some(r#"{"File":"f","FileEvent":"file deleted"}"#), None),
            (Item::Heartbeat, Some("{}"), None),
        ] {
            assert_eq!(encode(item.clone(), false).as_deref(), framed.map(str::as_bytes), "{item:?}");
            assert_eq!(encode(item.clone(), true).as_deref(), plain.map(str::as_bytes), "{item:?}");
        }
    }
}
