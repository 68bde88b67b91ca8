//! Log lines in the form that hosts parse: one JSON object per line on standard error.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Lines are at most this long: the kernel then writes them whole, and a readable check is enough never to block.
const LINE_MAX: usize = 4096;

/// Sends `tracing` events to the host. A second call, or an embedding program with its own subscriber, is left alone.
pub(crate) fn install() {
    // The transport's own chatter is of no use to operators.
    let filter = Targets::new()
        .with_default(Level::TRACE)
        .with_targets(["h2", "hyper", "hyper_util", "tonic", "tower", "mio", "tokio", "runtime"].map(|t| (t, Level::WARN)));
    if tracing_subscriber::registry().with(HclogLayer.with_filter(filter)).try_init().is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(place, "panic: {}", crate::serve::panic_text(panic.payload()));
        }));
    }
}

struct HclogLayer;

static DROPPED: AtomicU64 = AtomicU64::new(0);

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
        let missed = DROPPED.swap(0, Ordering::Relaxed);
        if missed > 0 {
            fields.rest.insert("lines_dropped_before".into(), missed.into());
        }
        let line = render(level, event.metadata().target(), &jiff::Timestamp::now(), fields);
        if !write(&line) {
            DROPPED.fetch_add(missed + 1, Ordering::Relaxed);
        }
    }
}

/// Writes without ever waiting: after the host's death nobody may read, and a task must not notice.
fn write(line: &[u8]) -> bool {
    let stderr = rustix::stdio::stderr();
    writable(stderr) && rustix::io::write(stderr, line).is_ok_and(|n| n == line.len())
}

fn writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready.is_ok_and(|n| n == 1) && fds[0].revents().contains(PollFlags::OUT)
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

fn render(level: &str, module: &str, now: &jiff::Timestamp, fields: Fields) -> Vec<u8> {
    // Exactly six digits: with any other number the whole line is taken for plain text.
    let timestamp = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let object = |message: &str, rest: Map<String, Value>| {
        let mut object = rest;
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
    // Escapes can take six bytes per byte.
    let keep = fields.message.floor_char_boundary((LINE_MAX - 512) / 6);
    let keep = if fields.message.len() <= LINE_MAX / 8 { fields.message.len() } else { keep };
    let cut = Map::from_iter([("truncated".to_owned(), Value::Bool(true))]);
    object(&fields.message[..keep], cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str, rest: &[(&str, Value)]) -> Value {
        let fields = Fields { message: message.into(), rest: rest.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() };
        let now = jiff::Timestamp::new(1_700_000_000, 5_000).expect("time");
        let line = render("info", "my::module", &now, fields);
        assert!(line.len() <= LINE_MAX, "{}", line.len());
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        serde_json::from_slice(&line).expect("JSON")
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
}
