//! Migration of an allocation's data from another node, when the group's `ephemeral_disk` says `migrate`.
//!
//! ```text
//! <alloc>/.migration/data-…   an incomplete download; without the mark, the next attempt removes it
//! <alloc>/.migration/done     it is in its place, or there is no data: never asked for again
//! ```
//!
//! The first task that starts waits until the previous allocation has ended. It receives the data as one archive
//! through a server, and puts the data in place when it is complete. What is refused or breaks off is asked for again;
//! a start that nobody gives the data fails, and the next one asks anew. Where there is no data to be had, and in the
//! last of several starts, an event gives the reason, and the tasks begin with empty directories.

use std::{
    fs,
    io::{self, ErrorKind, Read},
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use api::{ClientError, RequestOptions};
use bytes::{Buf, Bytes};
use host::{clock::now_ns, dirs::AllocDirs, node_env::TaskSpec};
use lifecycle::alloc::{events, machine::StartFailure};
use model::{Allocation, ClientStatus, TaskGroup};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    archive::unpack,
    discovery::DiscoveryError,
    place::TaskPlace,
    sticky::{self, FormerData},
};

/// How long one start asks for data that nobody gives it. Three of them end before a deployment gives the allocation up
/// (`healthy_deadline`, five minutes), unless transfers stall: those take three minutes a start.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Starts that ask for the data; the last of them begins without it, as does the last that the restart policy allows.
const STARTS: u32 = 3;
/// Transfers that a start tries at least, however long each takes.
const TRANSFERS: u32 = 3;
/// Pauses between two attempts: the first, and the longest. They double.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How long one request for the previous allocation waits for a change.
const WAIT: Duration = Duration::from_secs(60);
/// The node gives up an archive that sends nothing for this long.
const STALLED: Duration = Duration::from_secs(60);
const PLACE: &str = ".migration";

/// Whether the group wants its data migrated.
fn wanted(group: &TaskGroup) -> bool {
    group.migrates_data()
}

/// Whether a start begins without the data that nobody gives it. `before`: starts under this agent that have asked in
/// vain. `last_start`: its restart policy, which counts every failed start under any agent, lets none follow.
fn is_last(before: u32, last_start: bool) -> bool {
    last_start || before + 1 >= STARTS
}

/// Why the data has not come.
#[derive(Debug)]
enum Absent {
    /// It is not to be had, now or later.
    Gone(String),
    /// Another attempt may get it.
    Later(String),
    /// This node could not keep it, whoever gives it.
    Here(io::Error),
}

impl Absent {
    /// What an answer, or none, says of the data.
    fn asked(error: &ClientError) -> Self {
        if error.is_not_found() { Self::Gone(error.message()) } else { Self::Later(error.message()) }
    }

    /// What an archive that could not be unpacked says of the data.
    fn unpacked(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Later(error.to_string()),
            // What is wrong with the archive itself stays wrong.
            ErrorKind::Other
            | ErrorKind::InvalidData
            | ErrorKind::InvalidInput
            | ErrorKind::AlreadyExists
            | ErrorKind::InvalidFilename
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory => Self::Gone(error.to_string()),
            _ => Self::Here(error),
        }
    }
}

impl From<io::Error> for Absent {
    fn from(error: io::Error) -> Self {
        Self::Here(error)
    }
}

impl FormerData {
    /// Brings the data of the previous allocation here, if it was on another node. Once per allocation.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "the tasks of an allocation wait for the one that brings its data"
    )]
    pub(super) async fn bring(
        &self,
        place: &TaskPlace,
        spec: TaskSpec<'_>,
        interrupted: &CancellationToken,
    ) -> Result<(), StartFailure> {
        let previous = place.alloc.previous_allocation;
        let here = self.env.dirs(previous).root.exists() || self.present.end_of(previous).is_some();
        if !wanted(spec.group) || previous.is_nil() || here {
            return Ok(());
        }
        let failed = |why: String| StartFailure::Setup {
            why: format!("take over the data of the previous allocation {previous}: {why}"),
            recoverable: true,
        };
        let begun = place.moved.failed.load(Ordering::Acquire);
        let brought = interrupted.run_until_cancelled(async {
            let mut done = place.moved.done.lock().await;
            if *done {
                return Ok(());
            }
            let before = place.moved.failed.load(Ordering::Acquire);
            let last = is_last(before, place.last_start);
            if before != begun && !last {
                return Err(failed(
                    "another task of the group has waited for it in vain; the next start asks again".into(),
                ));
            }
            let why = match self.once(place, spec.group).await {
                Ok(()) => None,
                Err(Absent::Gone(why)) => Some(why),
                Err(Absent::Later(why)) if !last => {
                    place.moved.failed.store(before + 1, Ordering::Release);
                    return Err(failed(format!("{why}; the next start asks again")));
                }
                Err(Absent::Later(why)) => Some(why),
                Err(Absent::Here(error)) => return Err(failed(format!("this node could not keep it: {error}"))),
            };
            if let Some(why) = why {
                self.without(place, &why).await.map_err(|error| failed(error.to_string()))?;
            }
            *done = true;
            Ok(())
        });
        brought.await.ok_or(StartFailure::Interrupted)?
    }

    /// Brings the data, if no earlier start has done so or gone on without it.
    async fn once(&self, place: &TaskPlace, group: &TaskGroup) -> Result<(), Absent> {
        let to = place.dirs.clone();
        let migration = to.root.join(PLACE);
        if migration.join("done").exists() {
            return Ok(());
        }
        let previous = place.alloc.previous_allocation;
        let tasks: Vec<String> = group.tasks.iter().map(|t| t.name.to_string()).collect();
        let room = group.ephemeral_disk.as_ref().and_then(|d| d.size_mb).unwrap_or(300);
        let room = u64::try_from(room).unwrap_or(0) << 20;
        self.wait_for_end(place).await?;
        let (staging, bytes) = self.received(place, &tasks, room).await?;
        tracing::info!(alloc = %place.alloc.id, %previous, bytes, "data of the previous allocation received");
        let what = format!(
            "The data of the previous allocation {} has been copied from its node ({bytes} bytes)",
            previous.short()
        );
        tell(place, &what);
        let from = staging.clone();
        blocking(move || sticky::move_data(&from, &to, &tasks)).await?;
        blocking(move || fs::remove_dir_all(&staging.root)).await?;
        Ok(blocking(move || mark(&migration)).await?)
    }

    /// Goes on without the data, and says why.
    async fn without(&self, place: &TaskPlace, why: &str) -> io::Result<()> {
        let previous = place.alloc.previous_allocation;
        tracing::warn!(alloc = %place.alloc.id, %previous, why, "the data of the previous allocation stays behind");
        let what = format!(
            "The data of the previous allocation {} could not be had, the disk is empty: {why}",
            previous.short()
        );
        tell(place, &what);
        let to = place.dirs.clone();
        let migration = to.root.join(PLACE);
        blocking(move || {
            to.create()?;
            empty(&migration)?;
            mark(&migration)
        })
        .await
    }

    /// Waits until the previous allocation has ended on its node.
    async fn wait_for_end(&self, place: &TaskPlace) -> Result<(), Absent> {
        let previous = place.alloc.previous_allocation;
        let path = format!("/v1/allocation/{previous}");
        let (mut index, mut told, mut silent, mut pause) = (0, false, None::<Instant>, PAUSES.0);
        loop {
            let options = if index == 0 { RequestOptions::default() } else { RequestOptions::after(index, WAIT) };
            let options = options.in_namespace(place.job.namespace.to_string());
            let answer =
                async { Ok::<_, DiscoveryError>(self.discovery.client()?.query::<Allocation>(&path, &options).await?) };
            let why = match answer.await {
                Ok(answer) => {
                    (silent, pause) = (None, PAUSES.0);
                    match answer.value.client_status {
                        ClientStatus::Complete | ClientStatus::Failed => return Ok(()),
                        ClientStatus::Lost => return Err(Absent::Gone("its node is lost".into())),
                        ClientStatus::Unknown => return Err(Absent::Gone("its node is cut off".into())),
                        _ => {}
                    }
                    if !told {
                        let what = format!(
                            "Waiting for the previous allocation {} to end: its data is copied from its node",
                            previous.short()
                        );
                        tell(place, &what);
                        told = true;
                    }
                    index = answer.meta.index;
                    continue;
                }
                Err(DiscoveryError::Client(error)) => Absent::asked(&error),
                Err(error @ DiscoveryError::NoAddress) => Absent::Gone(error.to_string()),
                Err(error @ DiscoveryError::NoServer) => Absent::Later(error.to_string()),
            };
            // A query that waited well says nothing of how long the servers are silent.
            let silence = silent.get_or_insert_with(Instant::now).elapsed();
            if !matches!(why, Absent::Later(_)) || silence >= self.patience {
                return Err(why);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Receives the data into a directory of its own, with as many attempts as it takes: that directory, and the size
    /// of the archive in bytes.
    async fn received(&self, place: &TaskPlace, tasks: &[String], room: u64) -> Result<(AllocDirs, u64), Absent> {
        let (begun, mut attempt, mut pause) = (Instant::now(), 1, PAUSES.0);
        let migration = place.dirs.root.join(PLACE);
        loop {
            // A unique name: an interrupted attempt may still be writing its last piece.
            let staging = AllocDirs { root: migration.join(format!("data-{:x}", self.seeds.next())) };
            let (to, below, root) = (place.dirs.clone(), migration.clone(), staging.root.clone());
            blocking(move || {
                to.create()?;
                empty(&below)?;
                fs::create_dir(root)
            })
            .await?;
            match self.receive(place, &staging.root, tasks, room).await {
                Ok(bytes) => return Ok((staging, bytes)),
                Err(Absent::Later(why)) if attempt < TRANSFERS || begun.elapsed() < self.patience => {
                    tracing::debug!(alloc = %place.alloc.id, attempt, why, "the data has not come, will try again");
                }
                Err(absent) => return Err(absent),
            }
            tokio::time::sleep(pause).await;
            (attempt, pause) = (attempt + 1, (pause * 2).min(PAUSES.1));
        }
    }

    /// Receives the archive once and unpacks it as it arrives. Returns its size in bytes.
    async fn receive(&self, place: &TaskPlace, into: &Path, tasks: &[String], room: u64) -> Result<u64, Absent> {
        let path = format!("/v1/client/allocation/{}/snapshot", place.alloc.previous_allocation);
        let options = RequestOptions::default().in_namespace(place.job.namespace.to_string());
        let later = |why: String| Absent::Later(why);
        let client = self.discovery.client().map_err(|e| later(e.to_string()))?;
        let opened = tokio::time::timeout(STALLED, client.stream(&path, &options)).await;
        let opened = opened.map_err(|_| later(format!("no answer came for {} s", STALLED.as_secs())))?;
        let mut stream = opened.map_err(|error| Absent::asked(&error))?;
        let (pieces, received) = mpsc::channel::<Bytes>(8);
        let (into, tasks) = (into.to_owned(), tasks.to_vec());
        let unpacked = blocking::spawn(move || unpack(Pieces { received, now: Bytes::new() }, &into, &tasks, room));
        let fed = async {
            let mut bytes = 0;
            loop {
                let next = tokio::time::timeout(STALLED, stream.next()).await;
                let next = next.map_err(|_| later(format!("nothing came for {} s", STALLED.as_secs())))?;
                let Some(piece) = next.map_err(|error| later(error.to_string()))? else { return Ok(bytes) };
                bytes += piece.len() as u64;
                // The unpacking side has given up, and reports why.
                if pieces.send(piece).await.is_err() {
                    return Ok(bytes);
                }
            }
        };
        let fed: Result<u64, Absent> = fed.await;
        drop(pieces);
        let unpacked = unpacked.await.map_err(|e| later(e.to_string()))?.map_err(Absent::unpacked);
        // A truncated archive may look complete.
        fed.and_then(|bytes| unpacked.map(|()| bytes))
    }
}

/// Whether an allocation was to have data of the one before it, and has not received it.
#[must_use]
pub fn unfinished(dirs: &AllocDirs) -> bool {
    let migration = dirs.root.join(PLACE);
    migration.exists() && !migration.join("done").exists()
}

/// Makes the directory of a migration anew. Blocking.
fn empty(migration: &Path) -> io::Result<()> {
    match fs::remove_dir_all(migration) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => fs::create_dir_all(migration),
    }
}

/// Remembers that there is nothing left to bring. Blocking.
fn mark(migration: &Path) -> io::Result<()> {
    fs::File::create(migration.join("done"))?.sync_all()?;
    fs::File::open(migration)?.sync_all()
}

fn tell(place: &TaskPlace, text: &str) {
    place.tell(events::setup(now_ns(), text));
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    blocking::spawn(work).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// The arriving pieces as a reader.
struct Pieces {
    received: mpsc::Receiver<Bytes>,
    now: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.now.is_empty() {
            self.now = self.received.blocking_recv().unwrap_or_default();
        }
        let n = buffer.len().min(self.now.len());
        self.now.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{Arc, Mutex},
    };

    use host::{dirs::Keeper, node_env::NodeEnv, seeds::Seeds};
    use lifecycle::alloc::{
        inbox::{Deliver, Inbox, LoopEnded},
        machine::Event,
    };
    use model::{AllocId, Job, Namespace, Node, Task, job::EphemeralDisk};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::watch,
    };

    use super::*;
    use crate::{
        discovery::Discovery,
        network::AllocNetwork,
        present::{End, Present},
    };

    /// What a server answers to one request for the archive.
    enum Says {
        /// Status and text.
        Refuses(&'static str, &'static str),
        /// Nothing: it closes the connection.
        Nothing,
        /// Half of the archive.
        Breaks,
    }

    /// What the task is told.
    #[derive(Clone, Debug, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    impl Deliver for Told {
        fn deliver(&self, event: Event) -> Result<(), LoopEnded> {
            if let Event::Noted { event, .. } = event {
                self.0.lock().expect("lock").push(event.display_message.to_string());
            }
            Ok(())
        }
    }

    /// A node without other allocations.
    struct Nobody;

    impl Present for Nobody {
        fn end_of(&self, _: AllocId) -> Option<End> {
            None
        }
        fn holders(&self, _: &[(String, String)], _: AllocId) -> Vec<(AllocId, End)> {
            Vec::new()
        }
        fn writers(&self, _: &Namespace, _: &str, _: AllocId) -> Vec<(AllocId, End)> {
            Vec::new()
        }
    }

    struct Rig {
        former: FormerData,
        place: TaskPlace,
        told: Told,
        /// Answers to the next requests for the archive; afterwards it is given.
        says: Arc<Mutex<VecDeque<Says>>>,
        _dir: tempfile::TempDir,
    }

    fn job() -> Job {
        let task = Task { name: "t".into(), ..Task::default() };
        let disk = EphemeralDisk { migrate: Some(true), ..EphemeralDisk::default() };
        let group =
            TaskGroup { name: "g".into(), tasks: vec![task], ephemeral_disk: Some(disk), ..TaskGroup::default() };
        Job { id: "j".into(), namespace: "default".into(), task_groups: vec![group].into(), ..Job::default() }
    }

    impl Rig {
        /// A task with restarts left, and a server that answers so.
        async fn start(says: impl IntoIterator<Item = Says>) -> Self {
            let dir = tempfile::tempdir().expect("temp dir");
            let (previous, own) = (AllocId(uuid::Uuid::new_v4()), AllocId(uuid::Uuid::new_v4()));
            let (there, here) = (dir.path().join("there"), dir.path().join("here"));
            for made in [&there, &here] {
                fs::create_dir(made).expect("made");
            }
            let from = AllocDirs::new(&there, previous);
            from.create().expect("made");
            from.task("t").create(Keeper::Agent).expect("made");
            fs::write(from.shared().join("data/was"), "data").expect("file");
            let mut archive = Vec::new();
            crate::archive::pack(&from, &["t".to_owned()], &mut archive).expect("packed");
            let says = Arc::new(Mutex::new(says.into_iter().collect::<VecDeque<_>>()));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("address").to_string();
            let next = says.clone();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut asked = [0; 4096];
                    let Ok(n @ 1..) = stream.read(&mut asked).await else { continue };
                    let (mut status, mut body, mut length) = ("200 OK", archive.clone(), archive.len());
                    if String::from_utf8_lossy(&asked[..n]).contains("/snapshot") {
                        match next.lock().expect("lock").pop_front() {
                            None => {}
                            Some(Says::Nothing) => continue,
                            Some(Says::Breaks) => body.truncate(length / 2),
                            Some(Says::Refuses(with, text)) => (status, body, length) = (with, text.into(), text.len()),
                        }
                    } else {
                        body = br#"{"ClientStatus":"complete"}"#.to_vec();
                        length = body.len();
                    }
                    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                    let _ = stream.write_all(head.as_bytes()).await;
                    let _ = stream.write_all(&body).await;
                }
            });
            let node = watch::Sender::new(Arc::new(Node::default()));
            let former = FormerData {
                env: NodeEnv::new(node.subscribe(), "global", here.clone(), std::collections::BTreeMap::new()),
                present: Box::new(Nobody),
                discovery: Discovery::new(String::new(), Arc::new(move || Some(address.clone()))),
                seeds: Seeds::from(1),
                patience: Duration::ZERO,
            };
            let alloc = Allocation {
                id: own,
                previous_allocation: previous,
                task_group: "g".into(),
                namespace: "default".into(),
                ..Allocation::default()
            };
            let told = Told::default();
            let place = TaskPlace {
                alloc: Arc::new(alloc),
                job: Arc::new(job()),
                task: "t".into(),
                dirs: AllocDirs::new(&here, own),
                inbox: Inbox::new(told.clone()),
                network: Arc::new(AllocNetwork::none()),
                moved: Arc::default(),
                last_start: false,
            };
            Self { former, place, told, says, _dir: dir }
        }

        /// A start of the task; the error of one that failed.
        async fn start_task(&self) -> Result<(), String> {
            let spec = self.place.spec().expect("its job has it");
            match self.former.bring(&self.place, spec, &CancellationToken::new()).await {
                Ok(()) => Ok(()),
                Err(StartFailure::Setup { why, recoverable: true }) => Err(why),
                Err(other) => panic!("{other:?}"),
            }
        }

        fn has_the_data(&self) -> bool {
            fs::read_to_string(self.place.dirs.shared().join("data/was")).is_ok_and(|was| was == "data")
        }

        fn told(&self, part: &str) -> bool {
            self.told.0.lock().expect("lock").iter().any(|said| said.contains(part))
        }
    }

    #[tokio::test]
    async fn refusals_and_broken_transfers_are_repeated_until_the_data_is_here() {
        let rig = Rig::start([Says::Refuses("403 Forbidden", "Permission denied"), Says::Breaks]).await;
        rig.start_task().await.expect("the third transfer");
        assert!(rig.has_the_data() && rig.told("has been copied from its node"), "{:?}", rig.told);
        rig.says.lock().expect("lock").push_back(Says::Nothing);
        rig.start_task().await.expect("it is there, nobody is asked");
        assert_eq!(fs::read_dir(rig.place.dirs.root.join(PLACE)).expect("the directory").count(), 1, "the mark alone");
    }

    #[tokio::test]
    async fn a_start_without_an_answer_fails_and_the_next_one_has_the_data() {
        let rig =
            Rig::start([Says::Nothing, Says::Nothing, Says::Refuses("500 Internal Server Error", "not now")]).await;
        let why = rig.start_task().await.expect_err("three transfers");
        assert!(why.contains("not now; the next start asks again"), "{why}");
        assert!(unfinished(&rig.place.dirs), "nobody takes a part for the whole");
        assert!(!rig.told("the disk is empty"), "{:?}", rig.told);
        rig.start_task().await.expect("the next start");
        assert!(rig.has_the_data() && !unfinished(&rig.place.dirs));
    }

    #[tokio::test]
    async fn the_last_of_several_starts_begins_without_the_data() {
        let rig = Rig::start((0..9).map(|_| Says::Refuses("403 Forbidden", "Permission denied"))).await;
        // Starts that wait for the same answer fail together and count once.
        let (one, two) = tokio::join!(rig.start_task(), rig.start_task());
        assert!(one.is_err() && two.is_err(), "{one:?} {two:?}");
        rig.start_task().await.expect_err("the second start");
        rig.start_task().await.expect("the third start");
        assert!(!rig.has_the_data() && rig.told("the disk is empty: Permission denied"), "{:?}", rig.told);
        rig.start_task().await.expect("nobody is asked any more");
        assert!(!rig.has_the_data());
    }

    /// It has no next start to leave it to.
    #[tokio::test]
    async fn a_task_in_its_last_start_asks_itself_and_begins_without_the_data() {
        let rig = Rig::start((0..9).map(|_| Says::Refuses("403 Forbidden", "Permission denied"))).await;
        let other = TaskPlace { last_start: true, ..rig.place.clone() };
        let stop = CancellationToken::new();
        let last = rig.former.bring(&other, other.spec().expect("its job has it"), &stop);
        let (one, two) = tokio::join!(rig.start_task(), last);
        assert!(one.is_err() && two.is_ok(), "{one:?} {two:?}");
        assert!(rig.told("the disk is empty: Permission denied"), "{:?}", rig.told);
    }

    #[tokio::test]
    async fn what_is_not_found_is_asked_for_once() {
        let rig = Rig::start([Says::Refuses("404 Not Found", "Unknown allocation")]).await;
        rig.start_task().await.expect("begins without");
        assert!(!rig.has_the_data() && rig.told("the disk is empty: Unknown allocation"), "{:?}", rig.told);
    }

    /// A new agent has counted nothing; the policy has.
    #[test]
    fn the_third_start_begins_without_the_data_as_does_the_last_of_the_policy() {
        for (before, last_start, expected) in
            [(0, false, false), (1, false, false), (2, false, true), (0, true, true), (1, true, true), (2, true, true)]
        {
            assert_eq!(is_last(before, last_start), expected, "{before} before, last of the policy: {last_start}");
        }
    }

    #[test]
    fn a_full_disk_is_not_the_archives_fault() {
        let errno = |e: rustix::io::Errno| io::Error::from_raw_os_error(e.raw_os_error());
        for e in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT, rustix::io::Errno::ROFS, rustix::io::Errno::IO] {
            assert!(matches!(Absent::unpacked(errno(e)), Absent::Here(_)), "{e}");
        }
        // As the reader of archives wraps it.
        let wrapped = io::Error::new(ErrorKind::StorageFull, "failed to unpack `alloc/data/x`");
        assert!(matches!(Absent::unpacked(wrapped), Absent::Here(_)));
        let cut = io::Error::from(ErrorKind::UnexpectedEof);
        assert!(matches!(Absent::unpacked(cut), Absent::Later(_)), "a transfer that broke off");
        let damaged = io::Error::other("the archive has x of the kind Fifo");
        assert!(matches!(Absent::unpacked(damaged), Absent::Gone(_)));
    }
}
