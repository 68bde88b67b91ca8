//! Who may hold how many connections: a place for each, a reserve for short requests, and idle ones that make room.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use api::query::{Query, percent_decode};
use axum::body::Body;
use http::{Request, header::UPGRADE};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;

/// Local tools share one address, and none of them is somebody else.
const LOOPBACK_FACTOR: usize = 10;
/// Connections of a client that streams leave to short requests, at most.
const RESERVE: usize = 20;

/// What a connection does.
const IDLE: u8 = 0;
const SHORT: u8 = 1;
const LONG: u8 = 2;

/// Open connections by client address. What is looked for is kept in order: with 10,000 connections each further
/// one costs no more than the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients(Arc<Mutex<Open>>);

/// Idle connections by their last use.
type Idle = BTreeMap<u64, Arc<Place>>;

#[derive(Debug, Default)]
struct Open {
    by_client: HashMap<IpAddr, Own>,
    idle: Idle,
    total: usize,
    serial: u64,
}

/// Those of a client.
#[derive(Debug, Default)]
struct Own {
    idle: Idle,
    count: usize,
    streams: usize,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Place {
    client: IpAddr,
    /// Changed under the lock of [`Open`], with what that keeps of it.
    doing: AtomicU8,
    /// Grows with every request: who has been idle for longest has the lowest. No two are the same.
    used: AtomicU64,
    /// It has made room: nothing is kept of it any more.
    gone: AtomicBool,
    /// Its client reads as slowly as it likes.
    patient: AtomicBool,
    /// Somebody else needs the place.
    pub(crate) close: CancellationToken,
}

/// Holds a place; gives it back when dropped.
#[derive(Debug)]
pub(crate) struct Held(Clients, pub(crate) Arc<Place>);

/// A request in flight on a connection.
#[derive(Debug)]
pub(crate) struct Busy(Option<(Clients, Arc<Place>)>);

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some((clients, place)) = self.0.take() {
            clients.lock().turn(&place, IDLE);
        }
    }
}

impl Busy {
    /// The connection is another protocol's now: it is never idle again.
    pub(crate) fn for_good(mut self) {
        self.0 = None;
    }
}

impl Place {
    /// Whose connection it is.
    pub(crate) fn client(&self) -> IpAddr {
        self.client
    }

    pub(crate) fn idle(&self) -> bool {
        self.doing.load(Ordering::Acquire) == IDLE
    }

    /// The answer that is written from now on is one that people read page by page, or not.
    pub(crate) fn is_patient(&self, patient: bool) {
        self.patient.store(patient, Ordering::Release);
    }
}

/// How many connections of the client there may be.
pub(crate) fn most(limits: Limits, client: IpAddr) -> usize {
    let factor = if client.to_canonical().is_loopback() { LOOPBACK_FACTOR } else { 1 };
    limits.connections_per_client.saturating_mul(factor)
}

/// How many of these may be streams.
fn most_long(most: usize) -> usize {
    most - RESERVE.min(most / 5)
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection. Where there is none, the connection that has been idle for longest makes room.
    pub(crate) fn enter(&self, client: IpAddr, limits: Limits) -> Option<Held> {
        let most = most(limits, client);
        let mut open = self.lock();
        if most > 0 && open.by_client.get(&client).is_some_and(|own| own.count >= most) && !open.make_room(Some(client))
        {
            return None;
        }
        if limits.connections > 0 && open.total >= limits.connections && !open.make_room(None) {
            return None;
        }
        open.serial += 1;
        let place = Arc::new(Place {
            client,
            doing: AtomicU8::new(IDLE),
            used: AtomicU64::new(open.serial),
            gone: AtomicBool::new(false),
            patient: AtomicBool::new(false),
            close: CancellationToken::new(),
        });
        open.come(&place);
        Some(Held(self.clone(), place))
    }

    /// The request begins, unless it is a stream and the client has as many as it may.
    pub(crate) fn begin(&self, place: &Arc<Place>, long: bool, limits: Limits) -> Option<Busy> {
        let most = most(limits, place.client);
        let mut open = self.lock();
        if long && most > 0 && open.by_client.get(&place.client).is_some_and(|own| own.streams >= most_long(most)) {
            open.turn(place, IDLE);
            return None;
        }
        open.turn(place, if long { LONG } else { SHORT });
        Some(Busy(Some((self.clone(), place.clone()))))
    }
}

impl Open {
    /// Ends the idle connection that was used longest ago, of that client or of anybody. False when there is none.
    fn make_room(&mut self, client: Option<IpAddr>) -> bool {
        let idle = match client {
            Some(client) => self.by_client.get(&client).map(|own| &own.idle),
            None => Some(&self.idle),
        };
        let Some(oldest) = idle.and_then(|idle| idle.first_key_value()).map(|(_, place)| place.clone()) else {
            return false;
        };
        oldest.close.cancel();
        self.leave(&oldest);
        true
    }

    fn come(&mut self, place: &Arc<Place>) {
        self.total += 1;
        self.by_client.entry(place.client).or_default().count += 1;
        self.keep(place);
    }

    fn leave(&mut self, place: &Place) {
        if place.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        self.forget(place);
        self.total -= 1;
        if let Entry::Occupied(mut own) = self.by_client.entry(place.client) {
            own.get_mut().count -= 1;
            if own.get().count == 0 {
                own.remove();
            }
        }
    }

    /// The connection does something else from now on. It was used.
    fn turn(&mut self, place: &Arc<Place>, doing: u8) {
        let gone = place.gone.load(Ordering::Acquire);
        if !gone {
            self.forget(place);
        }
        self.serial += 1;
        place.used.store(self.serial, Ordering::Relaxed);
        place.doing.store(doing, Ordering::Release);
        if !gone {
            self.keep(place);
        }
    }

    /// Notes what it does.
    fn keep(&mut self, place: &Arc<Place>) {
        let own = self.by_client.entry(place.client).or_default();
        match place.doing.load(Ordering::Acquire) {
            IDLE => {
                let used = place.used.load(Ordering::Relaxed);
                own.idle.insert(used, place.clone());
                self.idle.insert(used, place.clone());
            }
            LONG => own.streams += 1,
            _ => {}
        }
    }

    /// Takes back what [`Self::keep`] has noted.
    fn forget(&mut self, place: &Place) {
        let Some(own) = self.by_client.get_mut(&place.client) else { return };
        match place.doing.load(Ordering::Acquire) {
            IDLE => {
                let used = place.used.load(Ordering::Relaxed);
                own.idle.remove(&used);
                self.idle.remove(&used);
            }
            LONG => own.streams -= 1,
            _ => {}
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().leave(&self.1);
    }
}

/// A path as its endpoint is found by: decoded.
pub(crate) fn plain(path: &str) -> Cow<'_, str> {
    match path.contains('%') {
        true => percent_decode(path, false).map_or(Cow::Borrowed(path), Cow::Owned),
        false => Cow::Borrowed(path),
    }
}

/// Does a query wait for a change?
pub(crate) fn waits(query: Option<&str>) -> bool {
    // What is no query is refused at once.
    let query = query.and_then(|query| Query::parse(query).ok());
    query.is_some_and(|query| !matches!(query.text("index"), "" | "0"))
}

/// Does the answer under this path go on for as long as its reader likes?
pub(crate) fn follows(path: &str) -> bool {
    let path = plain(path);
    ["/v1/client/fs/stream/", "/v1/client/fs/logs/"].iter().any(|prefix| path.starts_with(prefix))
        || matches!(&*path, "/v1/event/stream" | "/v1/agent/monitor")
}

/// Does the request stay open for as long as its client likes?
pub(crate) fn long(request: &Request<Body>) -> bool {
    let uri = request.uri();
    waits(uri.query()) || follows(uri.path()) || request.headers().contains_key(UPGRADE)
}

/// May its answer wait for its reader as long as that likes? Whoever pages through a file or a log, or looks at a
/// stream, stops for a while.
pub(crate) fn patient(request: &Request<Body>) -> bool {
    let path = plain(request.uri().path());
    long(request) || path.starts_with("/v1/client/fs/") || path.starts_with("/v1/operator/snapshot")
}

/// A connection's bytes, with its place: it is given back when the last who uses the connection is done, after an
/// upgrade too. Whoever does not take any of an answer for too long has left: what was made for it would stay in
/// memory.
#[derive(Debug)]
pub(crate) struct Counted<T> {
    io: T,
    held: Held,
    patience: Duration,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Counted<T> {
    pub(crate) fn new(io: T, held: Held, patience: Duration) -> Self {
        Self { io, held, patience, stalled: None }
    }

    /// What becomes of a write that may have to wait.
    fn waits<R>(&mut self, cx: &mut Context<'_>, written: Poll<std::io::Result<R>>) -> Poll<std::io::Result<R>> {
        if written.is_ready() || self.held.1.patient.load(Ordering::Acquire) {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                "the client does not read its answer",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.waits(cx, written)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.waits(cx, written)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn limits(connections_per_client: usize, connections: usize) -> Limits {
        Limits { connections_per_client, connections, ..Limits::default() }
    }

    #[test]
    fn the_idlest_makes_room_and_who_works_does_not() {
        let (clients, limits) = (Clients::default(), limits(3, 0));
        let held: Vec<Held> = (0..3).map(|_| clients.enter(FAR, limits).expect("a place")).collect();
        let first = clients.begin(&held[0].1, false, limits);
        assert!(first.is_some());
        // The second is the one that nobody has used since.
        let newer = clients.enter(FAR, limits).expect("room is made");
        assert!(held[1].1.close.is_cancelled() && !held[0].1.close.is_cancelled() && !held[2].1.close.is_cancelled());
        let busy: Vec<_> =
            [&held[2].1, &newer.1].map(|place| clients.begin(place, false, limits).expect("a short request")).into();
        assert!(clients.enter(FAR, limits).is_none(), "all of them work");
        assert!(clients.enter(OTHER, limits).is_some(), "that is nobody else's matter");
        drop(busy);
        assert!(clients.enter(FAR, limits).is_some());
        drop((held, newer));
        let open = clients.lock();
        assert_eq!(open.total, 0, "places come back");
        assert!(open.by_client.is_empty() && open.idle.is_empty());
    }

    #[test]
    fn what_is_kept_of_connections_is_what_they_do() {
        let (clients, limits) = (Clients::default(), limits(2, 6));
        let mut held: Vec<Option<Held>> = Vec::new();
        let mut busy: Vec<(usize, Option<Busy>)> = Vec::new();
        let mut dice = 7_u64;
        for step in 0..5_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = |n: usize| usize::try_from(dice >> 40).unwrap_or(0) % n.max(1);
            match (dice >> 33) % 4 {
                0 => held.push(clients.enter([FAR, OTHER, HERE][pick(3)], limits)),
                1 if !held.is_empty() => {
                    let n = pick(held.len());
                    let place = held[n].as_ref().map(|held| held.1.clone());
                    // One request at a time, as hyper serves them.
                    if let Some(place) = place.filter(|_| !busy.iter().any(|(of, _)| *of == n)) {
                        busy.push((n, clients.begin(&place, step % 3 == 0, limits)));
                    }
                }
                2 if !busy.is_empty() => drop(busy.swap_remove(pick(busy.len()))),
                3 if !held.is_empty() => {
                    let n = pick(held.len());
                    // A connection ends with its request.
                    busy.retain(|(of, _)| *of != n);
                    held[n] = None;
                }
                _ => {}
            }
            let open = clients.lock();
            let standing: Vec<_> =
                held.iter().flatten().map(|held| &held.1).filter(|place| !place.gone.load(Ordering::Relaxed)).collect();
            let doing = |client: Option<IpAddr>, what: u8| {
                let of = standing.iter().filter(|place| client.is_none_or(|client| place.client == client));
                of.filter(|place| place.doing.load(Ordering::Relaxed) == what).count()
            };
            assert_eq!((open.total, open.idle.len()), (standing.len(), doing(None, IDLE)), "step {step}");
            for client in [FAR, OTHER, HERE] {
                let count = standing.iter().filter(|place| place.client == client).count();
                let own = open.by_client.get(&client).map_or((0, 0, 0), |own| (own.count, own.idle.len(), own.streams));
                assert_eq!(own, (count, doing(Some(client), IDLE), doing(Some(client), LONG)), "step {step}, {client}");
            }
        }
    }

    #[test]
    fn streams_leave_a_reserve() {
        let (clients, limits) = (Clients::default(), limits(100, 0));
        let held: Vec<Held> = (0..100).map(|_| clients.enter(FAR, limits).expect("a place")).collect();
        let streams: Vec<_> = held.iter().map_while(|held| clients.begin(&held.1, true, limits)).collect();
        assert_eq!(streams.len(), 80);
        assert!(clients.begin(&held[99].1, false, limits).is_some(), "short requests are answered");
        drop(streams);
        assert!(clients.begin(&held[99].1, true, limits).is_some());
        assert_eq!(
            (most(limits, HERE), most(limits, FAR), most(Limits { connections_per_client: 0, ..limits }, FAR)),
            (1000, 100, 0)
        );
    }

    #[test]
    fn all_together_have_a_limit_too() {
        let (clients, limits) = (Clients::default(), limits(100, 2));
        let (a, b) = (clients.enter(FAR, limits).expect("a place"), clients.enter(OTHER, limits).expect("a place"));
        let _busy = clients.begin(&b.1, false, limits);
        let _c = clients.enter(HERE, limits).expect("the idle one makes room");
        assert!(a.1.close.is_cancelled() && !b.1.close.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_given_up_unless_it_may_take_its_time() {
        use tokio::io::AsyncWriteExt as _;
        let (clients, limits) = (Clients::default(), limits(3, 0));
        for patient in [false, true] {
            let (near, _far) = tokio::io::duplex(10);
            let held = clients.enter(FAR, limits).expect("a place");
            held.1.is_patient(patient);
            let mut counted = Counted::new(near, held, Duration::from_secs(60));
            counted.write_all(&[0; 10]).await.expect("room");
            let written = tokio::time::timeout(Duration::from_secs(600), counted.write_all(&[0; 10])).await;
            assert_eq!(written.is_err(), patient, "only the patient one still waits: {written:?}");
            if let Ok(ended) = written {
                assert_eq!(ended.expect_err("nobody reads").kind(), std::io::ErrorKind::TimedOut);
            }
        }
        // Each piece that is taken begins the wait anew.
        let (near, mut far) = tokio::io::duplex(10);
        let mut counted = Counted::new(near, clients.enter(FAR, limits).expect("a place"), Duration::from_secs(60));
        let reads = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(40)).await;
                tokio::io::AsyncReadExt::read_exact(&mut far, &mut [0; 10]).await.expect("something to read");
            }
        };
        let (written, ()) = tokio::join!(counted.write_all(&[0; 50]), reads);
        assert!(written.is_ok(), "{written:?}");
    }

    #[test]
    fn who_may_take_its_time() {
        let request = |uri: &str| Request::get(uri).body(Body::empty()).expect("a request");
        for (uri, is) in [
            ("/v1/jobs", false),
            ("/v1/client/fs/cat/x", true),
            ("/v1/operator/snapshot", true),
            ("/v1/client/f%73/cat/x", true),
            ("/v1/event/stream", true),
        ] {
            assert_eq!(patient(&request(uri)), is, "{uri}");
        }
    }

    #[test]
    fn what_stays_open() {
        let request = |uri: &str| Request::get(uri).body(Body::empty()).expect("a request");
        for (uri, is) in [
            ("/v1/jobs", false),
            ("/v1/jobs?index=0", false),
            ("/v1/jobs?index=7&wait=1s", true),
            ("/v1/event/stream?topic=Job", true),
            ("/v1/client/fs/logs/x?follow=true", true),
            ("/v1/client/fs/cat/x?path=index=1", false),
            ("/v1/event/%73tream", true),
            ("/v1/client/fs/lo%67s/x", true),
            ("/v1/jobs?inde%78=7", true),
            ("/v1/jobs?index=%30", false),
        ] {
            assert_eq!(long(&request(uri)), is, "{uri}");
        }
        assert!(long(&Request::get("/v1/x").header("upgrade", "websocket").body(Body::empty()).expect("a request")));
    }
}
