//! Constants of launch and handshake, and the handshake line itself.

use std::fmt;

/// Environment variable that tells a program it was started as a plugin.
pub const COOKIE_KEY: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
/// The value that [`COOKIE_KEY`] must have.
pub const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// Comma-separated application protocol versions that the host speaks.
pub const PROTOCOL_VERSIONS_KEY: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// Lower bound for TCP listeners of a plugin.
pub const MIN_PORT_KEY: &str = "PLUGIN_MIN_PORT";
/// Upper bound for TCP listeners of a plugin.
pub const MAX_PORT_KEY: &str = "PLUGIN_MAX_PORT";
/// Directory in which a plugin places its socket.
pub const SOCKET_DIR_KEY: &str = "PLUGIN_UNIX_SOCKET_DIR";
/// Group (number or name) that owns the socket.
pub const SOCKET_GROUP_KEY: &str = "PLUGIN_UNIX_SOCKET_GROUP";
/// A non-empty value asks for a seventh handshake field.
pub const MULTIPLEX_KEY: &str = "PLUGIN_MULTIPLEX_GRPC";
/// A client certificate asks for mutual TLS. Drivers must never be given one: their executors inherit it and fail.
pub const CLIENT_CERT_KEY: &str = "PLUGIN_CLIENT_CERT";
/// What all variables that belong to the launch start with; workloads must not see any of them.
pub const ENV_PREFIX: &str = "PLUGIN_";

/// Version of the base protocol: first field of the handshake.
pub const CORE_VERSION: u32 = 1;
/// Version of the application protocol: second field of the handshake.
pub const APP_VERSION: u32 = 2;
/// Default lower bound for TCP listeners.
pub const MIN_PORT_DEFAULT: u16 = 10_000;
/// Default upper bound for TCP listeners.
pub const MAX_PORT_DEFAULT: u16 = 25_000;

/// The one plugin API version there is.
pub const API_VERSION: &str = "v0.1.0";
/// Name under which the health service reports on the plugin.
pub const HEALTH_SERVICE: &str = "plugin";
/// `:authority` of all calls. A socket path there is a protocol error for HTTP/2 peers.
pub const AUTHORITY: &str = "http://localhost";
/// Longest usable path of a Unix socket in bytes.
pub const SOCKET_PATH_MAX: usize = 107;
/// Stop signal that means: let the remote task go on, only stop managing it.
pub const DETACH_SIGNAL: &str = "DETACH";
/// Decode limit of a host: far above any answer, and little enough that a plugin which lies about sizes cannot take the
/// node's memory.
pub const HOST_DECODE_LIMIT: usize = 64 << 20;
/// Decode limit of a plugin built with our SDK.
pub const PLUGIN_DECODE_LIMIT: usize = 64 << 20;

/// Where a plugin listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket in the file system.
    Unix(String),
    /// `ip:port`
    Tcp(String),
}

impl Address {
    /// `unix` or `tcp`, as in the handshake line.
    pub fn network(&self) -> &'static str {
        match self {
            Address::Unix(_) => "unix",
            Address::Tcp(_) => "tcp",
        }
    }

    /// The path or `ip:port`.
    pub fn addr(&self) -> &str {
        match self {
            Address::Unix(path) => path,
            Address::Tcp(addr) => addr,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.network(), self.addr())
    }
}

/// Why a handshake line was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Not a handshake line at all.
    #[error(
        "the first line on stdout is not a plugin handshake (at least 5 fields separated by '|', the first a number): \
            {0:?}; \
         the program must print nothing before the handshake"
    )]
    Unrecognised(String),
    /// Base protocol mismatch.
    #[error(
        "the plugin speaks base protocol {0:?}, this host speaks {CORE_VERSION}; rebuild the plugin with a matching \
            plugin library"
    )]
    CoreVersion(String),
    /// Application protocol mismatch.
    #[error(
        "the plugin speaks driver protocol {0:?}, this host speaks {APP_VERSION}; rebuild the plugin against a \
            matching driver library"
    )]
    AppVersion(String),
    /// Neither `unix` nor `tcp`.
    #[error("the plugin listens on network {0:?}, known are unix and tcp")]
    Network(String),
    /// Empty or impossible address.
    #[error("the plugin announces an unusable address {0:?}: {1}")]
    Address(String, &'static str),
    /// `netrpc` or unknown.
    #[error("the plugin serves {0:?}, this host needs grpc; serve the plugin over gRPC")]
    Protocol(String),
    /// A certificate nobody asked for.
    #[error(
        "the plugin announces a TLS certificate that was not asked for; serve it without TLS, the socket directory \
            is private"
    )]
    Certificate,
}

/// Reads the handshake line: 5, 6 or 7 fields; a sixth that is not empty would be a certificate, and none was asked
/// for.
///
/// # Errors
/// See [`HandshakeError`]; what it quotes of the line is cut and harmless to print.
pub fn parse(line: &str) -> Result<Address, HandshakeError> {
    let line = line.trim();
    let fields: Vec<&str> = line.split('|').collect();
    let looks_right = fields.len() >= 4 && !fields[0].is_empty() && fields[0].bytes().all(|b| b.is_ascii_digit());
    if !looks_right {
        return Err(HandshakeError::Unrecognised(excerpt(line)));
    }
    if fields[0] != "1" {
        return Err(HandshakeError::CoreVersion(excerpt(fields[0])));
    }
    if fields[1].parse() != Ok(APP_VERSION) {
        return Err(HandshakeError::AppVersion(excerpt(fields[1])));
    }
    let protocol = fields.get(4).copied().unwrap_or("netrpc");
    if protocol != "grpc" {
        return Err(HandshakeError::Protocol(excerpt(protocol)));
    }
    if fields.get(5).is_some_and(|cert| !cert.is_empty()) {
        return Err(HandshakeError::Certificate);
    }
    let addr = fields[3];
    let refuse = |why| Err(HandshakeError::Address(excerpt(addr), why));
    match fields[2] {
        _ if addr.is_empty() => refuse("it is empty"),
        "unix" if addr.len() > SOCKET_PATH_MAX => refuse("a socket path has at most 107 bytes"),
        "unix" if !addr.starts_with('/') => refuse("the socket path is not absolute"),
        "unix" if addr.bytes().any(|b| b < b' ') => refuse("it holds control characters"),
        "unix" => Ok(Address::Unix(addr.to_owned())),
        "tcp" => match addr.parse::<std::net::SocketAddr>() {
            Ok(_) => Ok(Address::Tcp(addr.to_owned())),
            Err(_) => refuse("it is not ip:port"),
        },
        other => Err(HandshakeError::Network(excerpt(other))),
    }
}

/// The line that a plugin prints: six fields with an empty certificate, a seventh only where the host asked for it.
pub fn line(address: &Address, multiplex_asked: bool) -> String {
    let seventh = if multiplex_asked { "|false" } else { "" };
    format!("{CORE_VERSION}|{APP_VERSION}|{}|{}|grpc|{seventh}", address.network(), address.addr())
}

/// Foreign text goes into error messages only in a bounded length.
fn excerpt(text: &str) -> String {
    const MAX: usize = 200;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_refused_for_their_reason() {
        let unix = |path: &str| Ok(Address::Unix(path.into()));
        let long = format!("1|2|unix|/{}|grpc|", "x".repeat(107));
        let cases: Vec<(&str, Result<Address, &str>)> = vec![
            ("1|2|unix|/tmp/plugin1|grpc", unix("/tmp/plugin1")),
            ("1|2|unix|/tmp/plugin1|grpc|", unix("/tmp/plugin1")),
            ("1|2|unix|/tmp/plugin1|grpc||true", unix("/tmp/plugin1")),
            ("1|2|unix|/tmp/plugin1|grpc||false\n", unix("/tmp/plugin1")),
            ("  1|2|unix|/tmp/plugin1|grpc|\r\n", unix("/tmp/plugin1")),
            ("1|2|tcp|127.0.0.1:10000|grpc|", Ok(Address::Tcp("127.0.0.1:10000".into()))),
            ("1|2|tcp|[::1]:10000|grpc|", Ok(Address::Tcp("[::1]:10000".into()))),
            ("", Err("not a plugin handshake")),
            ("hello world", Err("not a plugin handshake")),
            ("|2|unix|/tmp/x|grpc|", Err("not a plugin handshake")),
            ("1|2|unix", Err("not a plugin handshake")),
            ("x|2|unix|/tmp/x|grpc|", Err("not a plugin handshake")),
            ("2|2|unix|/tmp/x|grpc|", Err("base protocol")),
            ("99999999999999999999|2|unix|/tmp/x|grpc|", Err("base protocol")),
            ("1|3|unix|/tmp/x|grpc|", Err("driver protocol")),
            ("1||unix|/tmp/x|grpc|", Err("driver protocol")),
            ("1|2|unix|/tmp/x", Err("grpc")),
            ("1|2|unix|/tmp/x|netrpc|", Err("grpc")),
            ("1|2|sctp|/tmp/x|grpc|", Err("network")),
            ("1|2|unix||grpc|", Err("empty")),
            ("1|2|unix|relative|grpc|", Err("not absolute")),
            ("1|2|unix|/a\u{1}b|grpc|", Err("control characters")),
            (&long, Err("107 bytes")),
            ("1|2|tcp|localhost|grpc|", Err("ip:port")),
            ("1|2|unix|/tmp/x|grpc|MIIB", Err("TLS certificate")),
        ];
        for (line, expected) in cases {
            match (parse(line), expected) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{line:?}"),
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{line:?}: {got}"),
                (got, want) => panic!("{line:?}: got {got:?}, expected {want:?}"),
            }
        }
    }

    #[test]
    fn our_own_line_has_exactly_six_fields_and_a_seventh_only_on_request() {
        let address = Address::Unix("/tmp/plugin7".into());
        assert_eq!(line(&address, false), "1|2|unix|/tmp/plugin7|grpc|");
        assert_eq!(line(&address, true), "1|2|unix|/tmp/plugin7|grpc||false");
        assert_eq!(parse(&line(&address, false)), Ok(address));
    }

    proptest::proptest! {
        #[test]
        fn no_line_panics_and_what_is_taken_can_be_said_again(
            line in "[0-3x|]{0,4}\\|2?\\|(unix|tcp)?\\|.{0,40}\\|(grpc)?.{0,9}",
        ) {
            if let Ok(address) = parse(&line) {
                proptest::prop_assert_eq!(parse(&super::line(&address, true)), Ok(address));
            }
        }

        #[test]
        fn junk_never_panics(line in ".*") {
            let _ = parse(&line);
        }
    }

    #[test]
    fn foreign_text_is_bounded_in_errors() {
        let text = parse(&"é".repeat(1 << 20)).unwrap_err().to_string();
        assert!(text.len() < 1024, "{}", text.len());
    }
}
