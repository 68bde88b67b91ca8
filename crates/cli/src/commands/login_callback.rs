//! The listener that a browser brings a login back to: one request to `/oidc/callback`, answered with a page for the
//! person.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api::query::Query;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Path of the callback, as methods allow it.
const PATH: &str = "/oidc/callback";

/// How long one request may take: nobody else waits behind a connection that says nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest head of a request. Codes and states of providers are a few KiB at most.
const MOST: usize = 64 * 1024;

/// A listener for one login.
#[derive(Debug)]
pub(super) struct Callback {
    listener: TcpListener,
    host: String,
}

/// What the provider has sent back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Back {
    pub(super) state: String,
    pub(super) code: String,
    /// The provider; empty when it does not say (RFC 9207).
    pub(super) iss: String,
}

/// What a request was.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// Not the callback: a browser also asks for icons.
    Other,
    Back(Back),
    /// The provider says that nobody has logged in.
    Failed(String),
}

impl Callback {
    /// Listens on an address, `HOST:PORT`. With port 0 the system chooses one.
    ///
    /// # Errors
    /// When it cannot.
    pub(super) async fn bind(address: &str) -> Result<Self> {
        let host = address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let host = host.with_context(|| format!("-oidc-callback-addr must be HOST:PORT, it is {address:?}"))?;
        let listener = TcpListener::bind(address).await.with_context(|| format!("could not listen on {address}"))?;
        Ok(Self { listener, host })
    }

    /// Where the browser has to be sent.
    pub(super) fn uri(&self) -> String {
        let port = self.listener.local_addr().map_or(0, |address| address.port());
        format!("http://{}:{port}{PATH}", self.host)
    }

    /// Waits for the browser. May be dropped at any time: then the login is not completed.
    ///
    /// # Errors
    /// When the provider says that nobody has logged in, or the listener breaks.
    pub(super) async fn wait(&self) -> Result<Back> {
        loop {
            let (stream, _) = self.listener.accept().await.context("could not accept a connection")?;
            // A connection that breaks or is silent is nobody's login.
            match tokio::time::timeout(PATIENCE, answered(stream)).await {
                Ok(Ok(Seen::Back(back))) => return Ok(back),
                Ok(Ok(Seen::Failed(why))) => bail!("the identity provider did not log you in: {why}"),
                _ => {}
            }
        }
    }
}

/// Reads one request and answers it.
async fn answered(mut stream: TcpStream) -> std::io::Result<Seen> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MOST {
        let mut part = [0; 4096];
        match stream.read(&mut part).await? {
            0 => break,
            n => head.extend_from_slice(&part[..n]),
        }
    }
    let seen = seen(&String::from_utf8_lossy(&head));
    // Nothing of the request is repeated: whoever made it, the page says only what we say.
    let (status, text) = match &seen {
        Seen::Other => ("404 Not Found", "There is nothing here."),
        Seen::Back(_) => ("200 OK", "You are logged in. Go back to your terminal; you can close this page."),
        Seen::Failed(_) => ("200 OK", "The login has failed. Your terminal says why; you can close this page."),
    };
    let page = format!("<!doctype html><meta charset=\"utf-8\"><title>Drover</title><p>{text}</p>\n");
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nReferrer-Policy: \
         no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    // The login does not depend on the page.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
    Ok(seen)
}

/// What the head of a request says.
fn seen(head: &str) -> Seen {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(query) = Query::parse(query).ok().filter(|_| method == Some("GET") && path == PATH) else {
        return Seen::Other;
    };
    let text = |name: &str| query.text(name).to_owned();
    if !text("error").is_empty() {
        let why = [text("error"), text("error_description")];
        return Seen::Failed(why.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "));
    }
    match (text("state"), text("code")) {
        (state, code) if !state.is_empty() && !code.is_empty() => Seen::Back(Back { state, code, iss: text("iss") }),
        _ => Seen::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_callback_is_a_login() {
        let back = Back { state: "s t".into(), code: "c&d".into(), iss: "https://idp".into() };
        for (head, wanted) in [
            ("GET /oidc/callback?code=c%26d&state=s+t&iss=https%3A%2F%2Fidp HTTP/1.1\r\n\r\n", Seen::Back(back)),
            (
                "GET /oidc/callback?error=access_denied&error_description=no%20way HTTP/1.1\r\n\r\n",
                Seen::Failed("access_denied: no way".into()),
            ),
            ("GET /favicon.ico HTTP/1.1\r\n\r\n", Seen::Other),
            ("GET /oidc/callback?code=c HTTP/1.1\r\n\r\n", Seen::Other),
            ("POST /oidc/callback?code=c&state=s HTTP/1.1\r\n\r\n", Seen::Other),
            ("", Seen::Other),
        ] {
            assert_eq!(seen(head), wanted, "{head:?}");
        }
    }

    #[tokio::test]
    async fn a_browser_that_asks_for_more_is_waited_for() {
        let callback = Callback::bind("127.0.0.1:0").await.expect("listens");
        let uri = callback.uri();
        let address = uri.strip_prefix("http://").and_then(|rest| rest.strip_suffix(PATH)).expect("an address");
        let ask = async |target: &str| {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.expect("written");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            answer
        };
        let browser = async {
            assert!(ask("/favicon.ico").await.starts_with("HTTP/1.1 404"));
            ask(&format!("{PATH}?code=c&state=<b>")).await
        };
        let (back, page) = tokio::join!(callback.wait(), browser);
        assert_eq!(back.expect("a login"), Back { state: "<b>".into(), code: "c".into(), iss: String::new() });
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("logged in") && !page.contains("<b>"), "{page}");
        assert!(Callback::bind("nowhere").await.is_err());
    }
}
