//! The Task API: a unix socket in the secrets directory of every local task. The agent's HTTP API answers there.
//!
//! The socket exists from a task's first start to its end. A new agent listens anew at the same path. If the socket
//! cannot be made, the task starts without it and gets an event: few tasks use it. The agent supplies the server
//! ([`TaskApiServer`]); until then, connections wait.

use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener as StdListener,
        },
    },
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use host::secrets::API_SOCKET;
use model::AllocId;
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Uid},
    process::{Resource, getrlimit},
};
use tokio::{net::UnixListener, sync::watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Serves requests on a listener until the token is cancelled.
pub type TaskApiServer =
    Arc<dyn Fn(UnixListener, CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

type Key = (AllocId, Arc<str>);

/// A listening socket.
#[derive(Debug)]
struct Open {
    /// Device and inode, to tell whether the file at the path is still this socket.
    identity: (u64, u64),
    /// Ends the listener.
    _stop: DropGuard,
}

/// The sockets of a node's tasks.
pub struct TaskApis {
    server: watch::Sender<Option<TaskApiServer>>,
    open: Mutex<HashMap<Key, Open>>,
    /// Limit of open sockets: more would leave too few descriptors for other uses.
    most: usize,
    stop: CancellationToken,
}

impl TaskApis {
    /// An empty set. The token ends all sockets.
    pub fn new(stop: CancellationToken) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            server: watch::Sender::default(),
            open: Mutex::default(),
            most: usize::try_from(descriptors / 2).unwrap_or(usize::MAX),
            stop,
        }
    }

    /// Sets the server for requests from now on; `None` = requests wait.
    pub fn answered_by(&self, server: Option<TaskApiServer>) {
        self.server.send_replace(server);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens in a task's secrets directory, which must exist. Idempotent. With `owner` (uid and gid), only that user
    /// may connect.
    ///
    /// # Errors
    /// Why the task has no socket, for people.
    pub async fn listen(
        &self,
        alloc: AllocId,
        task: Arc<str>,
        secrets: PathBuf,
        owner: Option<(u32, u32)>,
    ) -> Result<(), String> {
        let key = (alloc, task);
        let there = identity(&secrets.join(API_SOCKET));
        {
            let open = self.lock();
            if open.get(&key).is_some_and(|known| Some(known.identity) == there) {
                return Ok(());
            }
            if open.len() >= self.most {
                return Err(format!(
                    "this agent listens for {} tasks already, which is half of the files that it may have open: raise \
                        its limit (RLIMIT_NOFILE)",
                    open.len()
                ));
            }
        }
        let bound = blocking::spawn(move || bind(&secrets, owner)).await.map_err(|e| e.to_string())?;
        let (listener, identity) = bound.map_err(|e| e.to_string())?;
        let listener = UnixListener::from_std(listener).map_err(|e| e.to_string())?;
        let stop = self.stop.child_token();
        let (mut server, ended) = (self.server.subscribe(), stop.clone());
        tokio::spawn(async move {
            let answers = ended
                .run_until_cancelled(async { server.wait_for(Option::is_some).await.ok().and_then(|s| s.clone()) })
                .await;
            if let Some(Some(answers)) = answers {
                answers(listener, ended).await;
            }
        });
        self.lock().insert(key, Open { identity, _stop: stop.drop_guard() });
        Ok(())
    }

    /// Ends the listener and removes the socket, at the task's end. Blocking, idempotent.
    pub fn end(&self, alloc: AllocId, task: &Arc<str>, secrets: &Path) {
        self.lock().remove(&(alloc, task.clone()));
        // A task without a secrets directory has no socket.
        if let Ok(dir) = directory(secrets) {
            let _ = rustix::fs::unlinkat(&dir, API_SOCKET, AtFlags::empty());
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().filter(|m| m.file_type().is_socket()).map(|m| (m.dev(), m.ino()))
}

fn directory(path: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Makes the socket anew. Names the directory by its descriptor, because socket paths are limited in length and
/// allocation paths are long. Also, the descriptor bypasses links that the task may plant.
fn bind(secrets: &Path, owner: Option<(u32, u32)>) -> io::Result<(StdListener, (u64, u64))> {
    let dir = directory(secrets)?;
    match rustix::fs::unlinkat(&dir, API_SOCKET, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => {
            return Err(io::Error::new(
                io::Error::from(e).kind(),
                format!("remove what is at {}: {e}", secrets.join(API_SOCKET).display()),
            ));
        }
    }
    let listener = StdListener::bind(format!("/proc/self/fd/{}/{API_SOCKET}", dir.as_raw_fd()))?;
    listener.set_nonblocking(true)?;
    let socket =
        rustix::fs::openat(&dir, API_SOCKET, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    // The descriptor names exactly this socket, whatever is at its path by now.
    let itself = format!("/proc/self/fd/{}", socket.as_raw_fd());
    let meta = fs::metadata(&itself)?;
    if !meta.file_type().is_socket() {
        return Err(io::Error::other("something else was put in its place"));
    }
    if let Some((uid, gid)) = owner {
        rustix::fs::chownat(&socket, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    }
    fs::set_permissions(&itself, fs::Permissions::from_mode(if owner.is_some() { 0o600 } else { 0o666 }))?;
    Ok((listener, (meta.dev(), meta.ino())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::*;

    fn hello() -> TaskApiServer {
        Arc::new(|listener, stop| {
            Box::pin(async move {
                while let Some(Ok((mut stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                    stream.write_all(b"hello").await.expect("written");
                }
            })
        })
    }

    async fn read(path: &Path) -> io::Result<String> {
        // Clients need a short path too.
        let dir = fs::File::open(path.parent().expect("a parent"))?;
        let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/{API_SOCKET}", dir.as_raw_fd())).await?;
        let mut text = String::new();
        tokio::time::timeout(Duration::from_secs(60), stream.read_to_string(&mut text)).await.expect("in time")?;
        Ok(text)
    }

    #[tokio::test]
    async fn it_stands_from_the_first_start_to_the_end() {
        let place = tempfile::tempdir().expect("temp dir");
        let secrets = place.path().join("a-long-name".repeat(12)).join("secrets");
        fs::create_dir_all(&secrets).expect("directory");
        let socket = secrets.join(API_SOCKET);
        assert!(socket.as_os_str().len() > 108, "longer than the address of a socket may be");
        let (alloc, task): (AllocId, Arc<str>) = (AllocId(uuid::Uuid::new_v4()), "t".into());
        let apis = TaskApis::new(CancellationToken::new());
        // The node does not follow links that an earlier run has left.
        let target = place.path().join("target");
        fs::write(&target, "the host's").expect("file");
        std::os::unix::fs::symlink(&target, &socket).expect("link");
        apis.listen(alloc, task.clone(), secrets.clone(), None).await.expect("listens");
        assert_eq!(fs::read_to_string(&target).expect("there"), "the host's");
        assert_eq!(fs::symlink_metadata(&socket).expect("there").permissions().mode() & 0o777, 0o666);
        // An early connection waits.
        let early = tokio::spawn({
            let socket = socket.clone();
            async move { read(&socket).await }
        });
        apis.answered_by(Some(hello()));
        assert_eq!(early.await.expect("joined").expect("answered"), "hello");
        let first = identity(&socket);
        apis.listen(alloc, task.clone(), secrets.clone(), None).await.expect("listens");
        assert_eq!(identity(&socket), first, "a restart of the task changes nothing");
        // The task has removed the socket: its next start gets a new one.
        fs::remove_file(&socket).expect("removed");
        apis.listen(alloc, task.clone(), secrets.clone(), None).await.expect("listens");
        assert_eq!(read(&socket).await.expect("answered"), "hello");
        apis.end(alloc, &task, &secrets);
        assert!(!socket.exists() && apis.lock().is_empty());
        apis.end(alloc, &task, &secrets);
    }

    #[tokio::test]
    async fn a_directory_that_a_task_has_replaced_by_a_link_is_not_followed() {
        let place = tempfile::tempdir().expect("temp dir");
        let (secrets, host) = (place.path().join("secrets"), place.path().join("host"));
        fs::create_dir(&host).expect("directory");
        fs::write(host.join(API_SOCKET), "the host's").expect("file");
        std::os::unix::fs::symlink(&host, &secrets).expect("link");
        let (alloc, task): (AllocId, Arc<str>) = (AllocId(uuid::Uuid::new_v4()), "t".into());
        // As a new agent does for a running task, and at the task's end.
        let apis = TaskApis::new(CancellationToken::new());
        apis.listen(alloc, task.clone(), secrets.clone(), None).await.expect_err("refused");
        apis.end(alloc, &task, &secrets);
        assert_eq!(fs::read_to_string(host.join(API_SOCKET)).expect("there"), "the host's");
        // A directory in the socket's place is not removed.
        fs::remove_file(&secrets).expect("the link");
        fs::create_dir_all(secrets.join(API_SOCKET).join("kept")).expect("directory");
        let why = apis.listen(alloc, task, secrets.clone(), None).await.expect_err("refused");
        assert!(why.contains("remove what is at") && secrets.join(API_SOCKET).join("kept").exists(), "{why}");
    }

    #[tokio::test]
    async fn only_the_user_of_the_task_may_connect() {
        let place = tempfile::tempdir().expect("temp dir");
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let owner = if me.0 == 0 { (65_534, 65_534) } else { me };
        let apis = TaskApis::new(CancellationToken::new());
        let listens = apis.listen(AllocId(uuid::Uuid::new_v4()), Arc::from("t"), place.path().to_owned(), Some(owner));
        listens.await.expect("listens");
        let meta = fs::symlink_metadata(place.path().join(API_SOCKET)).expect("there");
        assert_eq!((meta.permissions().mode() & 0o777, meta.uid(), meta.gid()), (0o600, owner.0, owner.1));
    }

    #[tokio::test]
    async fn other_descriptors_are_left_for_others() {
        let place = tempfile::tempdir().expect("temp dir");
        let apis = TaskApis { most: 1, ..TaskApis::new(CancellationToken::new()) };
        let listen = |name: &str| {
            let dir = place.path().join(name);
            fs::create_dir(&dir).expect("directory");
            apis.listen(AllocId(uuid::Uuid::nil()), Arc::from(name), dir, None)
        };
        listen("a").await.expect("listens");
        assert!(listen("b").await.expect_err("refused").contains("RLIMIT_NOFILE"));
    }
}
