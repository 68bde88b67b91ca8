//! A page of somebody else, in the same browser.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{
    kit::{sleeps, started},
    page::Page,
};

/// Answers every request with one page, until it is dropped.
struct Site {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// What it is asked for at its end.
const END: &str = "GET /end ";

impl Site {
    fn start(html: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let thread = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A browser also opens connections that it may never use.
                drop(stream.set_read_timeout(Some(Duration::from_secs(10))));
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let first = lines.next().unwrap_or_default();
                if first.starts_with(END) {
                    return;
                }
                // To the end of its head, else the browser is told of a reset connection.
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let length = html.len();
                drop(write!(
                    &stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: \
                     close\r\n\r\n{html}"
                ));
            }
        });
        Ok(Self { address, thread: Some(thread) })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            drop(write!(stream, "{END}HTTP/1.1\r\n\r\n"));
        }
        drop(self.thread.take().map(JoinHandle::join));
    }
}

pub(super) fn others(page: &mut Page) -> Result<()> {
    let agent = started("web-others")?;
    let at = agent.address();
    let ready = page.open(&format!("{at}/ui/jobs")).and_then(|()| page.shows("No job has been registered yet."));
    ready.context("it is there for its own pages")?;
    let site = Site::start(format!("<!doctype html><title>x</title><h1>x</h1><iframe src=\"{at}/ui/jobs\"></iframe>"))?;
    let (frame, foreign, socket) = ("frame-ancestors", "blocked by CORS policy", "WebSocket connection");
    for part in [frame, foreign, socket] {
        page.expect(part);
    }
    page.open(&format!("http://{}/", site.address))?;
    page.complains(frame)?;
    // What a form or a script there can send, and what it can learn.
    let order = json!(sleeps("owned").body().to_string());
    let sent = page.eval(&format!(
        "Promise.all([['{at}/v1/jobs', {{method: 'POST', mode: 'no-cors', body: {order}}}], ['{at}/v1/jobs', {{}}], \
         ['{at}/v1/system/gc', {{method: 'PUT'}}]].map(([url, how]) => fetch(url, how).then((r) => r.type, () => \
         'refused')))"
    ))?;
    ensure!(sent == json!(["opaque", "refused", "refused"]), "{sent}");
    page.complains(foreign)?;
    let exec = at.replace("http:", "ws:");
    let opened = page.eval(&format!(
        "new Promise((done) => {{ const s = new WebSocket('{exec}/v1/client/allocation/none/exec?command=[]'); \
         s.onopen = () => done('open'); s.onerror = () => done('refused'); }})"
    ))?;
    ensure!(opened == "refused", "{opened}");
    ensure!(agent.list("/v1/jobs")?.is_empty(), "a page of somebody else has registered a job");
    Ok(())
}
