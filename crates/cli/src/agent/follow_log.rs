//! The agent's log for those who follow it over the HTTP API: each at a level of its own, whatever the agent itself
//! logs. Nobody who reads slowly holds the agent up: he loses lines, and is told how many.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use futures::{StreamExt as _, stream};
use serde_json::{Map, Value, json};
use server_http::{FollowLog, LogQuery};
use tokio::sync::Notify;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    Registry,
    filter::Targets,
    layer::{Context, Layer},
    reload,
};

/// Lines that wait for a follower.
const WAITING: usize = 512;
/// Their bytes.
const WAITING_BYTES: usize = 1 << 20;
/// Most bytes of one line.
const LINE: usize = 16 << 10;
/// Bytes that are handed on at once.
const PIECE: usize = 64 << 10;
/// Who may follow at the same time.
const FOLLOWERS: usize = 64;

/// Libraries that speak at debug of every frame.
pub(super) const WIRE: &[&str] = &["h2", "hyper", "hyper_util", "tonic", "tower"];

/// The followers of this agent's log.
#[derive(Clone)]
pub(crate) struct LogFollowers {
    all: Arc<Mutex<All>>,
    /// What the subscriber hands on: nothing while nobody follows.
    wanted: reload::Handle<Targets, Registry>,
}

#[derive(Default)]
struct All {
    followers: Vec<Arc<Follower>>,
    ended: bool,
}

/// Somebody who follows.
struct Follower {
    query: LogQuery,
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<String>,
    bytes: usize,
    /// Lines that did not fit since the last one that did.
    lost: u64,
    ended: bool,
}

/// Hands events on to the followers.
pub(super) struct Tap(Arc<Mutex<All>>);

/// The followers, and the layer of the log that they follow with what it wants to hear of.
pub(super) fn followers() -> (LogFollowers, reload::Layer<Targets, Registry>, Tap) {
    let (filter, wanted) = reload::Layer::new(Targets::new());
    let all = Arc::default();
    (LogFollowers { all: Arc::clone(&all), wanted }, filter, Tap(all))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogFollowers {
    /// How the HTTP API follows the log.
    pub(crate) fn over_http(&self) -> FollowLog {
        let followers = self.clone();
        Arc::new(move |query| {
            let follower = followers.enter(query)?;
            let pieces = stream::unfold(Following(followers.clone(), follower), |following| async move {
                let piece = following.1.next().await?;
                Some((piece, following))
            });
            Ok(pieces.boxed())
        })
    }

    fn enter(&self, query: LogQuery) -> Result<Arc<Follower>, String> {
        let follower = Arc::new(Follower { query, waiting: Mutex::default(), more: Notify::new() });
        {
            let mut all = lock(&self.all);
            if all.followers.len() >= FOLLOWERS {
                return Err(format!("{FOLLOWERS} others follow this agent's log already"));
            }
            lock(&follower.waiting).ended = all.ended;
            all.followers.push(follower.clone());
        }
        self.settle();
        Ok(follower)
    }

    fn leave(&self, follower: &Arc<Follower>) {
        lock(&self.all).followers.retain(|other| !Arc::ptr_eq(other, follower));
        self.settle();
    }

    /// The log is told what somebody wants to hear of. One after the other: who leaves while another enters would
    /// have the last word with what held before. The lock is of the process, like what tracing makes of the levels.
    fn settle(&self) {
        static SETTLING: Mutex<()> = Mutex::new(());
        let _last = lock(&SETTLING);
        let level = lock(&self.all).followers.iter().map(|f| f.query.level).max().unwrap_or(LevelFilter::OFF);
        let targets = match level {
            LevelFilter::OFF => Targets::new(),
            level => Targets::new()
                .with_default(level)
                .with_targets(WIRE.iter().map(|name| (*name, level.min(LevelFilter::WARN)))),
        };
        // It fails where the log has gone: nobody hears anything then.
        let _ = self.wanted.reload(targets);
    }

    /// The agent ends: nobody waits for lines any more.
    pub(crate) fn end(&self) {
        let mut all = lock(&self.all);
        all.ended = true;
        for follower in &all.followers {
            lock(&follower.waiting).ended = true;
            follower.more.notify_one();
        }
    }
}

/// Follows until it is dropped.
struct Following(LogFollowers, Arc<Follower>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.leave(&self.1);
    }
}

impl Follower {
    fn push(&self, line: String) {
        {
            let mut waiting = lock(&self.waiting);
            if waiting.lines.len() >= WAITING || waiting.bytes + line.len() > WAITING_BYTES {
                waiting.lost += 1;
                return;
            }
            if let Some(told) = waiting.told(self.query.json) {
                waiting.add(told);
            }
            waiting.add(line);
        }
        self.more.notify_one();
    }

    /// What waits, in whole lines; None at the end.
    async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut waiting = lock(&self.waiting);
                let mut piece = Vec::new();
                while piece.len() < PIECE
                    && let Some(line) = waiting.lines.pop_front()
                {
                    waiting.bytes -= line.len();
                    piece.extend(line.into_bytes());
                }
                // Told at its place: after what came before, and before what comes next.
                if waiting.lines.is_empty()
                    && let Some(told) = waiting.told(self.query.json)
                {
                    piece.extend(told.into_bytes());
                }
                if !piece.is_empty() {
                    return Some(piece);
                }
                if waiting.ended {
                    return None;
                }
            }
            self.more.notified().await;
        }
    }
}

impl Waiting {
    fn add(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    /// The line that tells how many were lost, once.
    fn told(&mut self, json: bool) -> Option<String> {
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then(|| {
            let text = format!("Monitor dropped {lost} logs during monitor request");
            if json { format!("{}\n", json!({"@level": "warn", "@message": text})) } else { format!("[WARN] {text}\n") }
        })
    }
}

impl<S: Subscriber> Layer<S> for Tap {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let followers: Vec<Arc<Follower>> =
            lock(&self.0).followers.iter().filter(|f| f.query.level >= level).cloned().collect();
        if followers.is_empty() {
            return;
        }
        let mut said = Said::default();
        event.record(&mut said);
        let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
        for follower in followers {
            follower.push(said.line(event.metadata(), now, follower.query));
        }
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Said {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }

    /// The line in the form of hclog, which readers of stock logs know.
    fn line(&self, of: &tracing::Metadata<'_>, now: jiff::Timestamp, query: LogQuery) -> String {
        let place =
            query.location.then(|| of.file().zip(of.line())).flatten().map(|(file, line)| format!("{file}:{line}"));
        let mut line = if query.json {
            let mut object = Map::new();
            object.extend(place.map(|place| ("@caller".to_owned(), place.into())));
            object.insert("@level".to_owned(), of.level().as_str().to_ascii_lowercase().into());
            object.insert("@message".to_owned(), self.message.as_str().into());
            object.insert("@module".to_owned(), of.target().into());
            object.insert("@timestamp".to_owned(), format!("{now:.6}").into());
            object.extend(self.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            let whole = Value::Object(object).to_string();
            // Half an object is none.
            if whole.len() < LINE {
                whole
            } else {
                json!({"@level": "warn", "@message": "a line was too long to be shown"}).to_string()
            }
        } else {
            let mut text = format!("{now:.3} [{}] ", of.level());
            let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
            let _ = write!(
                text,
                "{place}{}: {}",
                of.target(),
                self.message.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
            );
            for (i, (name, value)) in self.fields.iter().enumerate() {
                let shown = value.as_str().map_or_else(|| value.to_string(), quoted);
                let _ = write!(text, "{}{name}={shown}", if i == 0 { ": " } else { " " });
            }
            if text.len() >= LINE {
                text.truncate(text.floor_char_boundary(LINE));
                text.push('…');
            }
            text
        };
        line.push('\n');
        line
    }
}

/// A value that readers can tell from what follows.
fn quoted(text: &str) -> String {
    let plain =
        !text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '='));
    if plain { text.to_owned() } else { format!("{text:?}") }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const DEBUG: LogQuery = LogQuery { level: LevelFilter::DEBUG, json: false, location: false };

    fn lines(followers: &LogFollowers, query: LogQuery) -> impl FnMut() -> Option<String> + use<> {
        let mut stream = (followers.over_http())(query).expect("a place");
        move || stream.next().now_or_never().map(|piece| String::from_utf8(piece.unwrap_or_default()).expect("text"))
    }

    /// Whether the followers want to hear of it. It asks the filter, not `tracing::enabled!`: that says yes more
    /// often while another thread has a subscriber, and its no makes the next event of the thread vanish.
    fn wanted(followers: &LogFollowers, target: &str, level: tracing::Level) -> bool {
        followers.wanted.with_current(|targets| targets.would_enable(target, &level)).expect("a log")
    }

    #[test]
    fn each_hears_of_his_level_and_nobody_else_does() {
        let (followers, filter, tap) = followers();
        let log = Registry::default().with(tap.with_filter(filter));
        tracing::subscriber::with_default(log, || {
            assert!(!wanted(&followers, "a", tracing::Level::ERROR), "nobody follows");
            let mut debug = lines(&followers, DEBUG);
            let mut json = lines(&followers, LogQuery { level: LevelFilter::WARN, json: true, location: true });
            assert!(wanted(&followers, "a", tracing::Level::DEBUG) && !wanted(&followers, "a", tracing::Level::TRACE));
            assert!(!wanted(&followers, "h2::codec", tracing::Level::DEBUG));
            tracing::debug!(target: "a::b", count = 2, why = "it is \"so\"", path = %"/v1/x", "quiet \u{1b}[2J");
            tracing::warn!(target: "a", yes = true, "loud");
            tracing::trace!("not wanted");
            let text = debug().expect("lines");
            let [first, second] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text:?}") };
            assert!(
                first.ends_with("Z [DEBUG] a::b: quiet \\u{1b}[2J: count=2 why=\"it is \\\"so\\\"\" path=/v1/x"),
                "{first}"
            );
            assert!(second.ends_with(" [WARN] a: loud: yes=true"), "{second}");
            assert_eq!(debug(), None, "that was all");
            let object: Value = serde_json::from_str(&json().expect("a line")).expect("JSON");
            assert_eq!(
                (&object["@level"], &object["@message"], &object["@module"], &object["yes"]),
                (&json!("warn"), &json!("loud"), &json!("a"), &json!(true))
            );
            assert!(object["@caller"].as_str().is_some_and(|at| at.contains("follow_log.rs:")), "{object}");
            drop((debug, json));
            assert!(!wanted(&followers, "a", tracing::Level::ERROR), "nobody follows any more");
            let mut last = lines(&followers, DEBUG);
            followers.end();
            assert_eq!(last().as_deref(), Some(""), "the end");
        });
    }

    #[test]
    fn who_enters_while_another_leaves_is_heeded() {
        let (followers, filter, tap) = followers();
        let log = Registry::default().with(tap.with_filter(filter));
        tracing::subscriber::with_default(log, || {
            for _ in 0..20 {
                let leaves = (followers.over_http())(DEBUG).expect("a place");
                let leaving = std::thread::spawn(move || drop(leaves));
                let _enters = (followers.over_http())(DEBUG).expect("a place");
                leaving.join().expect("it leaves");
                assert!(wanted(&followers, "a", tracing::Level::DEBUG));
            }
        });
    }

    #[test]
    fn who_reads_slowly_is_told_what_was_lost() {
        let (followers, filter, tap) = followers();
        let log = Registry::default().with(tap.with_filter(filter));
        tracing::subscriber::with_default(log, || {
            let mut slow = lines(&followers, DEBUG);
            for n in 0..WAITING + 7 {
                tracing::info!(n, "line");
            }
            let mut text = slow().expect("lines");
            while !text.contains("dropped") {
                text.push_str(&slow().expect("more"));
            }
            tracing::info!("after");
            text.push_str(&slow().expect("more"));
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), WAITING + 2);
            assert!(lines[WAITING - 1].ends_with(&format!("n={}", WAITING - 1)));
            assert_eq!(lines[WAITING], "[WARN] Monitor dropped 7 logs during monitor request");
            assert!(lines[WAITING + 1].ends_with(": after"));
            // By their bytes, too, and no line is longer than it may be.
            for _ in 0..100 {
                tracing::info!(text = "x".repeat(100_000), "long");
            }
            let text = slow().expect("lines");
            assert!(
                text.lines().all(|line| line.len() <= LINE + 3) && text.len() <= PIECE + LINE + 4,
                "{}",
                text.len()
            );
            let held: Vec<_> = (1..FOLLOWERS).map(|_| (followers.over_http())(DEBUG).expect("a place")).collect();
            assert!((followers.over_http())(DEBUG).is_err_and(|why| why.contains("64 others")));
            drop(held);
        });
    }
}
