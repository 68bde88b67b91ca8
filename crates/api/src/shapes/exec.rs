//! Messages of `GET /v1/client/allocation/:id/exec` after its upgrade to a websocket: one JSON text message each.

use serde::{Deserialize, Serialize};

/// Bytes of one stream, its end, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecIo {
    /// Bytes.
    #[serde(with = "super::base64_bytes", skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<u8>,
    /// Nothing follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub close: bool,
}

impl ExecIo {
    /// Bytes.
    #[must_use]
    pub fn bytes(data: impl Into<Vec<u8>>) -> Self {
        Self { data: data.into(), close: false }
    }

    /// The end.
    #[must_use]
    pub fn end() -> Self {
        Self { data: Vec::new(), close: true }
    }
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TtySize {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
}

/// From the person to the command. Without content: a sign of life, expected every ten seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecInput {
    /// Standard input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<ExecIo>,
    /// The terminal's size now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty_size: Option<TtySize>,
}

/// From the command to the person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecOutput {
    /// Standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<ExecIo>,
    /// Standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<ExecIo>,
    /// The command has ended; nothing follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exited: bool,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ExecResult>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecResult {
    /// Exit code; 128 + n after signal n.
    pub exit_code: i32,
}

/// First message when the request says `ws_handshake=true`: how a browser, which cannot set headers, brings its token.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecHandshake {
    /// 1.
    pub version: u32,
    /// ACL token.
    pub auth_token: String,
}

impl std::fmt::Debug for ExecHandshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecHandshake").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_api() {
        let write = |v: &dyn erased::Json| v.text();
        for (message, text) in [
            (
                &ExecInput { stdin: Some(ExecIo::bytes(b"ls\n")), tty_size: None } as &dyn erased::Json,
                r#"{"stdin":{"data":"bHMK"}}"#,
            ),
            (&ExecInput { stdin: Some(ExecIo::end()), tty_size: None }, r#"{"stdin":{"close":true}}"#),
            (
                &ExecInput { stdin: None, tty_size: Some(TtySize { height: 24, width: 80 }) },
                r#"{"tty_size":{"height":24,"width":80}}"#,
            ),
            (&ExecInput::default(), "{}"),
            (
                &ExecOutput { stdout: Some(ExecIo::bytes([0, 255])), ..ExecOutput::default() },
                r#"{"stdout":{"data":"AP8="}}"#,
            ),
            (
                &ExecOutput { exited: true, result: Some(ExecResult { exit_code: 3 }), ..ExecOutput::default() },
                r#"{"exited":true,"result":{"exit_code":3}}"#,
            ),
        ] {
            assert_eq!(write(message), text);
        }
        let read: ExecInput =
            serde_json::from_str(r#"{"stdin":{"data":null,"close":true},"tty_size":null}"#).expect("null is absent");
        assert_eq!(read, ExecInput { stdin: Some(ExecIo::end()), tty_size: None });
    }

    mod erased {
        pub(super) trait Json {
            fn text(&self) -> String;
        }
        impl<T: serde::Serialize> Json for T {
            fn text(&self) -> String {
                serde_json::to_string(self).expect("json")
            }
        }
    }
}
