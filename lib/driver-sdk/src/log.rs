//! Log lines in the form that hosts parse: one JSON object per line on standard error.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Longest line in bytes: the kernel writes it as a whole, so a check for room is enough never to block.
const LINE_MAX: usize = 4096;

/// How long the count of dropped lines waits for a next line before it gets its own.
const ALONE_AFTER: Duration = Duration::from_millis(100);

/// Sends `tracing` events to the host. Does nothing at a second call, or in a program with its own subscriber.
pub(crate) fn install() {
    // The transport's own messages are of no use to operators.
    let filter = Targets::new().with_default(Level::TRACE).with_targets(
        ["h2", "hyper", "hyper_util", "tonic", "tower", "mio", "tokio", "runtime"].map(|t| (t, Level::WARN)),
    );
    if tracing_subscriber::registry().with(HclogLayer.with_filter(filter)).try_init().is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(place, "panic: {}", crate::guard::panic_text(panic.payload()));
        }));
    }
}

struct HclogLayer;

static OUTLET: Outlet = Outlet::new();

impl<S: Subscriber> Layer<S> for HclogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = match *event.metadata().level() {
            Level::TRACE => "trace",
            Level::DEBUG => "debug",
            Level::INFO => "info",
            Level::WARN => "warn",
            Level::ERROR => "error",
        };
        OUTLET.put(rustix::stdio::stderr(), level, event.metadata().target(), fields);
    }
}

/// The outlet of log lines. It never waits for the reader, and reports the number of dropped lines later.
///
/// The lock spans check and write: otherwise two threads that both find room for one line would wait for the reader.
struct Outlet {
    owed: Mutex<Owed>,
    grew: Condvar,
}

struct Owed {
    lines: u64,
    /// Whether a thread will report the number if no further line does.
    debtor: bool,
}

impl Outlet {
    const fn new() -> Self {
        Self { owed: Mutex::new(Owed { lines: 0, debtor: false }), grew: Condvar::new() }
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one line, or counts it as dropped. The first dropped line starts the thread that reports the number if no
    /// line follows.
    fn put(&'static self, to: BorrowedFd<'static>, level: &str, module: &str, fields: Fields) {
        let mut owed = self.owed();
        if write(to, level, module, fields, owed.lines) {
            owed.lines = 0;
            return;
        }
        owed.lines += 1;
        if !owed.debtor {
            let thread = thread::Builder::new().name("log-debtor".into()).stack_size(64 << 10);
            owed.debtor = thread.spawn(move || self.settle(to)).is_ok();
        }
        drop(owed);
        self.grew.notify_one();
    }

    /// Reports dropped lines as soon as there is room, repeatedly; ends when the reader has gone.
    fn settle(&self, to: BorrowedFd<'_>) {
        loop {
            let mut owed = self.owed();
            while owed.lines == 0 {
                owed = self.grew.wait(owed).unwrap_or_else(PoisonError::into_inner);
            }
            drop(owed);
            thread::sleep(ALONE_AFTER);
            // Without the lock, which every log call takes: only this thread may wait for the reader.
            if room(to, None).intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return;
            }
            let mut owed = self.owed();
            if owed.lines > 0 {
                let fields = Fields {
                    message: "log lines were left out, for the host did not read them in time".into(),
                    rest: Map::new(),
                };
                if write(to, "warn", module_path!(), fields, owed.lines) {
                    owed.lines = 0;
                }
            }
        }
    }
}

/// Writes without ever waiting: after the host's death there may be no reader, and a task must not notice.
fn write(to: BorrowedFd<'_>, level: &str, module: &str, fields: Fields, owed: u64) -> bool {
    if !room(to, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).contains(PollFlags::OUT) {
        return false;
    }
    let line = render(level, module, &jiff::Timestamp::now(), fields, owed);
    rustix::io::write(to, &line).is_ok_and(|n| n == line.len())
}

/// The events of `fd` once it has room or no reader; empty after the time limit.
fn room(fd: BorrowedFd<'_>, within: Option<&Timespec>) -> PollFlags {
    loop {
        let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
        match poll(&mut fds, within) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return PollFlags::NVAL,
            Ok(_) => return fds[0].revents(),
        }
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        // The reserved keys must be strings, so a field of that name must not replace one.
        let name = field.name().strip_prefix('@').unwrap_or(field.name());
        self.rest.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.put(field, format!("{value:?}").into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
        } else {
            self.put(field, value.into());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

fn render(level: &str, module: &str, now: &jiff::Timestamp, fields: Fields, owed: u64) -> Vec<u8> {
    // Exactly six digits: with any other number hosts take the whole line for plain text.
    let timestamp = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let object = |message: &str, rest: Map<String, Value>| {
        let mut object = rest;
        if owed > 0 {
            object.insert("lines_dropped_before".into(), owed.into());
        }
        object.insert("@level".into(), level.into());
        object.insert("@message".into(), message.into());
        object.insert("@module".into(), module.into());
        object.insert("@timestamp".into(), timestamp.clone().into());
        let mut line = Value::Object(object).to_string().into_bytes();
        line.push(b'\n');
        line
    };
    let line = object(&fields.message, fields.rest);
    if line.len() <= LINE_MAX {
        return line;
    }
    // An escape can take six bytes for one.
    let keep = fields.message.floor_char_boundary((LINE_MAX - 512) / 6);
    let keep = if fields.message.len() <= LINE_MAX / 8 { fields.message.len() } else { keep };
    let cut = Map::from_iter([("truncated".to_owned(), Value::Bool(true))]);
    object(&fields.message[..keep], cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str, rest: &[(&str, Value)]) -> Value {
        let fields =
            Fields { message: message.into(), rest: rest.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() };
        let now = jiff::Timestamp::new(1_700_000_000, 5_000).expect("time");
        let line = render("info", "my::module", &now, fields, 3);
        assert!(line.len() <= LINE_MAX, "{}", line.len());
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        let line: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(line["lines_dropped_before"], 3, "cut or not, what was left out is said");
        line
    }

    #[test]
    fn lines_have_the_reserved_keys_as_strings_and_six_digits() {
        let value = line("hello\nworld", &[("n", 3.into()), ("s", "x".into())]);
        assert_eq!(value["@timestamp"], "2023-11-14T22:13:20.000005Z");
        assert_eq!(value["@level"], "info");
        assert_eq!(value["@message"], "hello\nworld");
        assert_eq!(value["@module"], "my::module");
        assert_eq!((&value["n"], &value["s"]), (&3.into(), &"x".into()));
    }

    #[test]
    fn long_lines_are_cut_at_a_character_and_say_so() {
        for text in ["x".repeat(100_000), "é".repeat(100_000), "\u{1}".repeat(100_000)] {
            let value = line(&text, &[("big", "y".repeat(9000).into())]);
            assert_eq!(value["truncated"], true);
            assert!(value["@message"].as_str().is_some_and(|m| m.len() >= 500 && text.starts_with(m)));
        }
        assert_eq!(line("short", &[("big", "y".repeat(9000).into())])["@message"], "short");
    }

    #[test]
    fn every_line_is_read_or_counted_even_if_none_follows() {
        static OUTLET: Outlet = Outlet::new();
        let (read, to) = rustix::pipe::pipe().expect("pipe");
        // Leaked, because standard error lasts as well: the reporting thread keeps it.
        let to: BorrowedFd<'static> = std::os::fd::AsFd::as_fd(Box::leak(Box::new(to)));
        let flood = |n: u64| {
            for _ in 0..n {
                OUTLET.put(to, "info", "m", Fields { message: "x".repeat(1000), rest: Map::new() });
            }
        };
        // Two at once, and more than the pipe holds: neither waits for the absent reader.
        thread::scope(|s| {
            s.spawn(|| flood(300));
            s.spawn(|| flood(200));
        });
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(std::fs::File::from(read)));
        let (mut came, mut counted) = (0, 0);
        // Ends when all lines are counted. Without the thread the last ones never are, and the read would wait for
        // ever.
        let (told, tell) = std::sync::mpsc::channel();
        thread::spawn(move || {
            while came + counted < 500 {
                let line: Value = serde_json::from_str(&lines.next().expect("a line").expect("read")).expect("JSON");
                counted += line["lines_dropped_before"].as_u64().unwrap_or(0);
                came += u64::from(line["@message"].as_str().is_some_and(|m| m.starts_with('x')));
            }
            told.send((came, counted)).expect("somebody listens");
        });
        let (came, counted) =
            tell.recv_timeout(Duration::from_secs(30)).expect("the last lines are counted although none follows");
        assert_eq!(came + counted, 500);
        assert!((1..500).contains(&came), "{came}");
    }
}
