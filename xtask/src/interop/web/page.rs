//! A page in a real browser, over the DevTools protocol (<https://chromedevtools.github.io/devtools-protocol/>): it is
//! opened, read, typed into and photographed. What the browser complains of – an error on the console, an exception, a
//! violation of the content security policy, an answer that says the server is broken – is kept.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use testkit::Unbroken;
use tungstenite::{Message, WebSocket, client};

use super::super::browser::chromium;
use crate::{local, workspace};

/// How long a page may take for anything.
const BOUND: Duration = Duration::from_secs(90);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(30);

/// A browser with one page.
pub(super) struct Page {
    browser: Child,
    profile: PathBuf,
    socket: WebSocket<Unbroken<TcpStream>>,
    session: String,
    next: u64,
    /// What the browser has complained of.
    troubles: Vec<String>,
    /// Answers of 5xx that a story expects, by a part of their address.
    expected: Vec<String>,
    /// What it has complained of as expected.
    met: Vec<String>,
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(self.browser.kill());
        drop(self.browser.wait());
        drop(local::end_all(&self.profile));
        local::remove(&self.profile);
    }
}

impl Page {
    /// Starts a browser whose profile lies in this directory.
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let profile = dir.join("chromium");
        let mut browser = chromium(&profile)?
            .args(["--remote-debugging-port=0", "--force-prefers-reduced-motion", "about:blank"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("chromium does not start")?;
        let mut lines = BufReader::new(browser.stderr.take().context("no standard error")?).lines();
        let says = |line: &String| line.strip_prefix("DevTools listening on ").map(str::to_owned);
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| says(&line)).context("no DevTools")?;
        // It writes on, and must not block.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let host = address.trim_start_matches("ws://").split('/').next().context("no host")?.to_owned();
        let stream = TcpStream::connect(&host)?;
        stream.set_nodelay(true)?;
        let (socket, _) =
            client(&address, Unbroken(stream)).map_err(|error| anyhow!("no DevTools at {address}: {error}"))?;
        let (session, troubles, expected, met) = (String::new(), Vec::new(), Vec::new(), Vec::new());
        let mut page = Self { browser, profile, socket, session, next: 0, troubles, expected, met };
        page.another()?;
        Ok(page)
    }

    /// Opens another tab and looks at that; the one that was looked at, for [`Self::turn`].
    pub(super) fn another(&mut self) -> Result<String> {
        let before = std::mem::take(&mut self.session);
        let target = self.call("Target.createTarget", json!({"url": "about:blank", "newWindow": true}))?;
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attached)?;
        attached["sessionId"].as_str().context("no session")?.clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        self.call("Emulation.setScrollbarsHidden", json!({"hidden": true}))?;
        self.size(1280, 900)?;
        Ok(before)
    }

    /// Looks at another tab.
    pub(super) fn turn(&mut self, tab: &str) {
        tab.clone_into(&mut self.session);
    }

    /// One command of the protocol.
    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.socket.get_ref().0.set_read_timeout(Some(BOUND))?;
        self.socket.send(Message::text(message.to_string()))?;
        loop {
            let Message::Text(text) = self.socket.read().with_context(|| format!("no answer to {method}"))? else {
                continue;
            };
            let mut heard: Value = serde_json::from_str(text.as_str())?;
            if heard["id"] == self.next {
                ensure!(heard["error"].is_null(), "{method}: {}", heard["error"]);
                return Ok(heard["result"].take());
            }
            self.hear(&heard);
        }
    }

    /// Keeps what the browser complains of.
    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let trouble = match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => {
                let details = &params["exceptionDetails"];
                Some(format!("exception: {} {}", text(&details["text"]), details["exception"]["description"]))
            }
            "Runtime.consoleAPICalled" if params["type"] == "error" => Some(format!("console: {}", params["args"])),
            // What a request was refused with is said on the page; what the browser itself refuses is our mistake.
            "Log.entryAdded" if params["entry"]["level"] == "error" && params["entry"]["source"] != "network" => {
                Some(format!("log: {}", text(&params["entry"]["text"])))
            }
            "Network.responseReceived" if params["response"]["status"].as_u64() >= Some(500) => {
                Some(format!("{} from {}", params["response"]["status"], text(&params["response"]["url"])))
            }
            _ => None,
        };
        let Some(told) = trouble else { return };
        let expected = self.expected.iter().any(|part| told.contains(part));
        if expected { &mut self.met } else { &mut self.troubles }.push(told);
    }

    /// What a story does on purpose: a complaint that holds this is no trouble, nor is an answer of 5xx from such an
    /// address.
    pub(super) fn expect(&mut self, part: &str) {
        self.expected.push(part.to_owned());
    }

    /// Waits until the browser has complained of what was expected.
    pub(super) fn complains(&mut self, part: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.met.iter().any(|told| told.contains(part)) {
            ensure!(begun.elapsed() < BOUND, "the browser does not complain of {part:?}, but of {:?}", self.troubles);
            // Whatever is on its way is heard before the answer.
            self.eval("null")?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Fails when the browser has complained of something.
    pub(super) fn untroubled(&mut self) -> Result<()> {
        // Whatever is on its way is heard before the answer.
        self.eval("null")?;
        ensure!(self.troubles.is_empty(), "the browser complains:\n{}", self.troubles.join("\n"));
        Ok(())
    }

    /// The value of an expression, also of one that is awaited.
    pub(super) fn eval(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut said = self.call("Runtime.evaluate", params)?;
        ensure!(said["exceptionDetails"].is_null(), "{expression}: {}", said["exceptionDetails"]);
        Ok(said["result"]["value"].take())
    }

    /// Memory of the page's scripts in bytes, without what nobody holds any more.
    pub(super) fn memory(&mut self) -> Result<u64> {
        self.call("HeapProfiler.collectGarbage", json!({}))?;
        self.call("Runtime.getHeapUsage", json!({}))?["usedSize"].as_f64().map(|bytes| bytes as u64).context("no heap")
    }

    /// Goes to an address and waits for the heading of its page.
    pub(super) fn open(&mut self, address: &str) -> Result<()> {
        let gone = self.call("Page.navigate", json!({"url": address}))?;
        ensure!(gone["errorText"].is_null(), "{address}: {}", gone["errorText"]);
        self.until(
            &format!("the page of {address}"),
            "document.readyState === 'complete' && document.querySelector('h1')",
        )
    }

    /// Opens an address. How long after the browser has begun the expression has become true and was painted, in
    /// milliseconds: measured in the page, because asking for it costs time as well.
    pub(super) fn open_until(&mut self, address: &str, expression: &str) -> Result<f64> {
        let source = format!(
            "(() => {{ const look = () => {{ if ({expression}) requestAnimationFrame(() => {{ window.seen = \
             performance.now(); }}); else requestAnimationFrame(look); }}; \
             addEventListener('DOMContentLoaded', look); }})()"
        );
        let script = self.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": source }))?;
        self.open(address)?;
        self.until(expression, "window.seen > 0")?;
        self.call("Page.removeScriptToEvaluateOnNewDocument", json!({ "identifier": script["identifier"] }))?;
        Ok(self.eval("window.seen")?.as_f64().unwrap_or(f64::NAN))
    }

    /// Waits until an expression is true.
    pub(super) fn until(&mut self, what: &str, expression: &str) -> Result<()> {
        let begun = Instant::now();
        let whole = format!("!!({expression})");
        loop {
            // While it moves to another page there may be nothing to ask.
            if matches!(self.eval(&whole), Ok(Value::Bool(true))) {
                return Ok(());
            }
            if begun.elapsed() > BOUND {
                let shown = self.eval("document.body?.innerText").unwrap_or_default();
                bail!("{what} did not happen within {} s; the page shows:\n{}", BOUND.as_secs(), text(&shown));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the page shows this text.
    pub(super) fn shows(&mut self, text: &str) -> Result<()> {
        self.until(&format!("{text:?} on the page"), &format!("document.body.innerText.includes({})", json!(text)))
    }

    /// Waits until it does not.
    pub(super) fn hides(&mut self, text: &str) -> Result<()> {
        self.until(&format!("no {text:?} any more"), &format!("!document.body.innerText.includes({})", json!(text)))
    }

    /// Presses the button or follows the link with this text, once it is there.
    pub(super) fn click(&mut self, text: &str) -> Result<()> {
        // Behind an open dialog nothing can be pressed.
        let find = format!(
            "[...(document.querySelector('dialog[open]') ?? document).querySelectorAll('a, button')]\
             .find((e) => e.textContent.trim() === {} && e.getClientRects().length && !e.disabled)",
            json!(text)
        );
        self.until(&format!("something called {text:?} to press"), &find)?;
        self.eval(&format!("{find}.click()")).map(drop)
    }

    /// Writes into the field with this label, as somebody who types.
    pub(super) fn fill(&mut self, label: &str, value: &str) -> Result<()> {
        let find = format!("document.querySelector('[aria-label={}]')", json!(label));
        self.until(&format!("a field {label:?}"), &find)?;
        self.eval(&format!("{find}.select?.(); {find}.focus(); true"))?;
        self.call("Input.insertText", json!({ "text": value })).map(drop)
    }

    /// Chooses an option of the list with this label, by its value.
    pub(super) fn choose(&mut self, label: &str, value: &str) -> Result<()> {
        let find = format!("document.querySelector('select[aria-label={}]')", json!(label));
        self.until(&format!("a list {label:?}"), &find)?;
        let change = "dispatchEvent(new Event('change', {bubbles: true}))";
        self.eval(&format!("{find}.value = {}; {find}.{change}", json!(value))).map(drop)
    }

    /// Types into whatever has the focus, key by key.
    pub(super) fn types(&mut self, text: &str) -> Result<()> {
        text.chars().try_for_each(|c| self.key(&c.to_string()))
    }

    /// Presses a letter or an arrow with others held: 2 = Ctrl, 8 = Shift.
    pub(super) fn key_with(&mut self, key: &str, held: u8) -> Result<()> {
        let arrows = [("ArrowLeft", 37), ("ArrowUp", 38), ("ArrowRight", 39), ("ArrowDown", 40)];
        let arrow = arrows.iter().find(|(name, _)| *name == key).map(|(_, code)| *code);
        let code = arrow.unwrap_or_else(|| key.bytes().next().unwrap_or_default().to_ascii_uppercase());
        for kind in ["rawKeyDown", "keyUp"] {
            let mut params = json!({"type": kind, "key": key, "modifiers": held, "windowsVirtualKeyCode": code});
            if key.bytes().all(|byte| byte.is_ascii_digit()) {
                params["code"] = format!("Digit{key}").into();
            }
            self.call("Input.dispatchKeyEvent", params)?;
        }
        Ok(())
    }

    /// Presses a key, such as `g`, `/` or `Enter`.
    pub(super) fn key(&mut self, key: &str) -> Result<()> {
        let text = if key.chars().count() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({"type": kind, "key": key, "text": text});
            if key == "Enter" {
                params["text"] = "\r".into();
                params["windowsVirtualKeyCode"] = 13.into();
            }
            let others = [("Tab", 9), ("Escape", 27), ("ArrowDown", 40), ("Backspace", 8)];
            if let Some((_, code)) = others.iter().find(|(name, _)| *name == key) {
                params["windowsVirtualKeyCode"] = (*code).into();
            }
            self.call("Input.dispatchKeyEvent", params)?;
        }
        Ok(())
    }

    /// Makes the window so large, in CSS pixels.
    pub(super) fn size(&mut self, width: u32, height: u32) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Keeps a picture of this name where pictures are wanted: to be looked at.
    pub(super) fn keep(&mut self, name: &str) -> Result<()> {
        match std::env::var_os("DROVER_WEB_PICTURES") {
            Some(dir) => self.picture(&Path::new(&dir).join(format!("{name}.png"))),
            None => Ok(()),
        }
    }

    /// Renews the picture of this name in the documentation, when somebody wants that.
    pub(super) fn document(&mut self, name: &str) -> Result<()> {
        if std::env::var_os("DROVER_WEB_DOCS").is_none() {
            return Ok(());
        }
        self.size(1280, 560)?;
        self.picture(&workspace::root().join(format!("docs/ui/{name}.png")))?;
        self.size(1280, 900)
    }

    /// A picture of the page, as PNG.
    fn picture(&mut self, to: &Path) -> Result<()> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}))?;
        fs::write(to, BASE64_STANDARD.decode(text(&shot["data"]))?)?;
        Ok(())
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
