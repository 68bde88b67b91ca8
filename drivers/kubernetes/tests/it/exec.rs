//! Commands in the container: their sessions live as long as their server does, and no longer.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use driver_sdk::exec::collect;
use driver_sdk::{RemoteDriver as _, RemoteError, RemoteHandle, TaskExit};
use kubernetes::Driver;
use tokio::task::JoinHandle;

use crate::fake::{Api, Said, Shell, ensure, pass};

/// A pod that runs, in which commands behave like this.
async fn running(shell: Shell) -> (Api, Arc<Driver>, RemoteHandle) {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs("drover-k");
    api.store().shell = shell;
    (api, driver, made.handle)
}

/// Begins a command, and waits until its session is open.
async fn session(api: &Api, driver: &Arc<Driver>, handle: &RemoteHandle) -> JoinHandle<Result<TaskExit, RemoteError>> {
    let (driver, handle) = (driver.clone(), handle.clone());
    let command = vec!["sh".to_owned()];
    let session = async move { collect(|io| driver.exec(&handle, 1, command, false, io)).await.0 };
    let session = tokio::spawn(session);
    testkit::eventually("a session", || api.store().sessions == 1).await;
    session
}

#[tokio::test]
async fn a_quiet_command_keeps_its_session() {
    let (api, driver, handle) = running(Shell::Quiet).await;
    let session = session(&api, &driver, &handle).await;
    pass(Duration::from_secs(600)).await;
    assert!(!session.is_finished(), "{:?}", session.await);
    api.store().shell = Shell::Ends;
    api.change_nothing();
    assert_eq!(session.await.expect("ran"), Ok(TaskExit::default()));
}

#[tokio::test]
async fn a_session_whose_server_has_died_ends_with_the_reason() {
    let (api, driver, handle) = running(Shell::Dead).await;
    let session = session(&api, &driver, &handle).await;
    pass(Duration::from_secs(150)).await;
    assert!(session.is_finished(), "nothing was heard for two minutes and a half");
    let ended = session.await.expect("ran");
    let Err(RemoteError::CouldNotAsk(why)) = &ended else { panic!("{ended:?}") };
    assert!(why.contains("timed out") && why.contains("may run on"), "{why}");
}

#[tokio::test]
async fn a_session_that_breaks_ends_with_what_was_said_before() {
    let (_api, driver, handle) = running(Shell::Breaks).await;
    let session = collect(|io| driver.exec(&handle, 1, vec!["sh".into()], false, io));
    let (ended, said, _) = tokio::time::timeout(Duration::from_secs(30), session).await.expect("an end");
    assert!(matches!(&ended, Err(RemoteError::CouldNotAsk(why)) if why.contains("may run on")), "{ended:?}");
    assert_eq!(said, b"said");
}

#[tokio::test]
async fn a_session_that_is_not_opened_is_given_up() {
    let (api, _, handle) = running(Shell::Quiet).await;
    let driver = api.manager_with(api.impatient()).await.expect("configured");
    api.say(Method::GET, "/exec", Said::Silence, false, usize::MAX);
    let opening = collect(|io| driver.exec(&handle, 1, vec!["sh".into()], false, io));
    let ended = tokio::time::timeout(Duration::from_secs(30), opening).await.expect("request_timeout is 4 s").0;
    assert!(matches!(&ended, Err(RemoteError::CouldNotAsk(why)) if why.contains("within 4 s")), "{ended:?}");
}

#[tokio::test]
async fn a_signal_whose_command_does_not_end_is_given_up() {
    let (api, _, handle) = running(Shell::Ends).await;
    let driver = api.manager_with(api.impatient()).await.expect("configured");
    assert_eq!(driver.signal(&handle, 1, "SIGHUP").await, Ok(()));
    api.store().shell = Shell::Quiet;
    let signal = driver.signal(&handle, 1, "SIGHUP");
    let ended = tokio::time::timeout(Duration::from_secs(30), signal).await.expect("request_timeout is 4 s");
    assert!(matches!(&ended, Err(RemoteError::CouldNotAsk(why)) if why.contains("kill -HUP 1")), "{ended:?}");
}
