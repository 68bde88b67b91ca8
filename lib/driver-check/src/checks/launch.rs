//! The process: cookie, handshake, signals, its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_proto::base::PluginInfoRequest;
use driver_proto::handshake::{self, Address};
use driver_proto::health::HealthCheckRequest;
use driver_proto::health::health_check_response::ServingStatus;
use driver_proto::plugin::Empty;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::plugin::{Launch, dial};
use crate::task::{STOP_TIMEOUT, excerpt};

table! {
    "launch/no-cookie", "H32", "run by hand it explains itself on standard error and exits with 1",
        "someone who starts the program in a shell waits before a silent process, or is shown a line for \
            machines", no_cookie;
    "launch/handshake", "H33", "the first line on standard output is the handshake: six fields, the sixth empty, and \
        somebody listens there",
        "the agent calls the plugin unrecognised and its driver is missing; a sixth field that is not empty crashes \
            Nomad agents", line;
    "launch/socket-dir", "H33", "the socket is made in PLUGIN_UNIX_SOCKET_DIR when that is given",
        "the socket lands where a cleaner of temporary files removes it, and the plugin cannot be \
            reached again", socket_dir;
    "launch/seventh-field", "H33", "a seventh field is printed when PLUGIN_MULTIPLEX_GRPC asks for it, and only then",
        "hosts that ask take the plugin for one that is too old; older hosts misread a field they did \
            not ask for", seventh_field;
    "launch/other-version", "H33", "with a protocol version that it does not speak it announces its own, or ends",
        "a host of the future takes it for something it is not, and fails in the middle of a task", other_version;
    "launch/stdout-quiet", "A3", "nothing is printed on standard output after the handshake",
        "hosts stop reading at a long line: the plugin then blocks for ever in a print", stdout_quiet;
    "launch/health", "H34", "the health service reports SERVING for \"plugin\" and for the empty name",
        "an agent that finds the process again takes it for a stranger and starts a second one", health;
    "launch/sigint", "H34", "SIGINT does not end it",
        "Ctrl-C in an agent's terminal kills every plugin before the agent can stop it in order", sigint;
    "launch/sigterm", "A3", "SIGTERM ends it",
        "a machine that shuts down has to wait for the plugin and kill it", sigterm;
    "launch/closed-stderr", "H34", "it lives on when nobody reads its standard error and output any more",
        "when the agent dies the plugin dies at its next log line, and what it was doing is lost", closed_stderr;
    "launch/bare-probe", "H34", "connections that close or talk nonsense disturb nobody",
        "an agent that looks whether the plugin still listens brings it down", bare_probe;
    "launch/shutdown", "H34", "GRPCController.Shutdown ends the process with exit code 0 within two seconds, and the \
        socket is gone",
        "each stop of the agent takes longer and ends in SIGKILL; sockets pile up", shutdown;
    "launch/shutdown-keeps-tasks", "H34", "Shutdown leaves tasks running, and the next plugin process finds them",
        "each restart or upgrade of the agent stops all workloads of the driver", shutdown_keeps_tasks;
}

async fn no_cookie(lab: &Arc<Lab>) -> Outcome {
    for (cookie, what) in [(None, "without the cookie"), (Some("wrong"), "with a wrong cookie")] {
        let process = lab.spawn(&Launch { cookie, ..Launch::default() })?;
        let status = process.ended(lab.pace().patience).await;
        let Some(status) = status else {
            process.kill().await;
            return failed(format!(
                "{what} it went on running; standard output: {:?}",
                excerpt(&process.stdout.text())
            ));
        };
        let so = || !process.stderr.text().trim().is_empty() || status.code() != Some(1);
        lab.until(&format!("{what} it printed nothing on standard error"), so).await?;
        hold!(status.code() == Some(1), "{what} it ended with {status}, expected is exit code 1");
        let out = process.stdout.text();
        hold!(out.is_empty(), "{what} it printed {:?} on standard output", excerpt(&out));
    }
    Ok(())
}

async fn line(lab: &Arc<Lab>) -> Outcome {
    let process = lab.spawn(&Launch::default())?;
    let line = process.first_line(lab.pace().patience).await?;
    let address = match handshake::parse(&line) {
        Ok(address) => address,
        Err(error) => return failed(error.to_string()),
    };
    let fields: Vec<&str> = line.split('|').collect();
    hold!(
        fields.len() == 6 && fields[5].is_empty(),
        "the line {line:?} has {} fields, expected are six with an empty sixth",
        fields.len()
    );
    hold!(line.trim() == line, "the line {line:?} has blanks around it");
    // Listening comes before printing, so the first attempt must do.
    let connected = dial(&address).await;
    process.kill().await;
    if let Address::Unix(path) = &address {
        // Who is killed removes nothing.
        let _ = std::fs::remove_file(path);
    }
    match connected {
        Ok(_) => Ok(()),
        Err(error) => failed(format!("right after the handshake nobody listened at {address}: {error}")),
    }
}

async fn socket_dir(lab: &Arc<Lab>) -> Outcome {
    let dir = lab.dir().join("sockets");
    if let Err(error) = std::fs::create_dir(&dir) {
        return failed(format!("no directory for sockets: {error}"));
    }
    let plugin = lab
        .launch(Launch { env: vec![(handshake::SOCKET_DIR_KEY, dir.display().to_string())], ..Launch::default() })
        .await?;
    match &plugin.address {
        Address::Tcp(_) => not_applicable("the plugin listens on TCP"),
        Address::Unix(path) => {
            hold!(
                std::path::Path::new(path).starts_with(&dir),
                "the socket is {path}, asked for was a place in {}",
                dir.display()
            );
            Ok(())
        }
    }
}

async fn seventh_field(lab: &Arc<Lab>) -> Outcome {
    // A false value asks for the field without asking for multiplexing.
    let process = lab.spawn(&Launch { env: vec![(handshake::MULTIPLEX_KEY, "false".into())], ..Launch::default() })?;
    let line = process.first_line(lab.pace().patience).await?;
    process.kill().await;
    remove_socket(&line);
    let fields: Vec<&str> = line.split('|').collect();
    hold!(fields.len() == 7, "asked for a seventh field it printed {line:?}");
    hold!(
        fields[6] == "false" || fields[6] == "true",
        "the seventh field is {:?}, expected is true or false",
        fields[6]
    );
    Ok(())
}

fn remove_socket(line: &str) {
    if let Ok(Address::Unix(path)) = handshake::parse(line) {
        let _ = std::fs::remove_file(path);
    }
}

async fn other_version(lab: &Arc<Lab>) -> Outcome {
    let process = lab.spawn(&Launch { versions: "99", ..Launch::default() })?;
    let line = process.first_line(lab.pace().patience).await;
    let ended = !process.alive();
    process.kill().await;
    match line {
        Ok(line) => {
            remove_socket(&line);
            let version = line.split('|').nth(1).unwrap_or_default();
            hold!(version == "2", "offered only version 99 it announced version {version:?} in {line:?}");
            Ok(())
        }
        Err(_) if ended => Ok(()),
        Err(stop) => Err(stop),
    }
}

async fn stdout_quiet(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    if let Ok(prepared) = lab.prepare(Work::Exits) {
        let task = lab.start(&plugin, prepared).await?;
        lab.wait(&plugin, &task.id).await?;
        lab.destroy(&plugin, &task.id).await?;
    }
    let text = plugin.process.stdout.text();
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    hold!(rest.is_empty(), "after the handshake it printed {:?} on standard output", excerpt(rest));
    Ok(())
}

async fn health(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    for service in [handshake::HEALTH_SERVICE, ""] {
        let request = HealthCheckRequest { service: service.into() };
        let answer = lab.call(&plugin, &format!("Health.Check({service:?})"), plugin.health().check(request)).await?;
        hold!(answer.status() == ServingStatus::Serving, "Health.Check({service:?}) says {:?}", answer.status());
    }
    Ok(())
}

async fn sigint(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    for _ in 0..3 {
        plugin.process.signal(Signal::INT);
        if plugin.process.ended(Duration::from_millis(100)).await.is_some() {
            return failed(format!("SIGINT ended it ({})", plugin.process.epitaph()));
        }
    }
    let works = lab.still_works(&plugin, "SIGINT").await;
    // On a busy machine its end may be seen late.
    if works.is_err() && plugin.process.ended(lab.pace().limit(Duration::from_secs(2))).await.is_some() {
        return failed(format!("SIGINT ended it ({})", plugin.process.epitaph()));
    }
    works
}

async fn sigterm(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    plugin.process.signal(Signal::TERM);
    let limit = lab.pace().limit(Duration::from_secs(5));
    hold!(plugin.process.ended(limit).await.is_some(), "{limit:?} after SIGTERM it still runs");
    if let Address::Unix(path) = &plugin.address {
        // How much it tidies up then is its own affair.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

async fn closed_stderr(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    plugin.process.close_outputs();
    // Reasons to log: a configuration, a refusal, a task.
    lab.configure(&plugin).await?;
    let unknown = driver_proto::driver::SignalTaskRequest { task_id: "no such task".into(), signal: "SIGUSR1".into() };
    drop(lab.answer(&plugin, "SignalTask", plugin.driver().signal_task(unknown)).await?);
    if let Ok(prepared) = lab.prepare(Work::Exits) {
        let task = lab.start(&plugin, prepared).await?;
        lab.wait(&plugin, &task.id).await?;
        lab.destroy(&plugin, &task.id).await?;
    }
    // The next line that is logged is the one that kills.
    drop(lab.answer(&plugin, "SetConfig", plugin.base().set_config(junk_config())).await?);
    if plugin.process.ended(Duration::from_millis(50)).await.is_some() {
        return failed(format!("with nobody reading its output it ended ({})", plugin.process.epitaph()));
    }
    lab.still_works(&plugin, "the end of whoever read its output").await
}

fn junk_config() -> driver_proto::base::SetConfigRequest {
    driver_proto::base::SetConfigRequest { msgpack_config: vec![0xc1], ..Default::default() }
}

async fn bare_probe(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    for words in ["", "GET / HTTP/1.0\r\n\r\n", "\0\0\0"] {
        for _ in 0..5 {
            match dial(&plugin.address).await {
                // That the other side hangs up is its right.
                Ok(mut stream) => drop(stream.write_all(words.as_bytes()).await),
                Err(error) => {
                    return failed(format!("after some bare connections it does not listen any more: {error}"));
                }
            }
        }
    }
    lab.still_works(&plugin, "bare connections").await?;
    // New callers as well, not only the one that is connected.
    match dial(&plugin.address).await {
        Ok(_) => Ok(()),
        Err(error) => failed(format!("after bare connections it does not listen any more: {error}")),
    }
}

async fn shutdown(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    // A fingerprint is open as in every agent: it must not hold up the end.
    let looks = lab
        .call(&plugin, "Fingerprint", plugin.driver().fingerprint(driver_proto::driver::FingerprintRequest {}))
        .await?;
    let limit = lab.pace().limit(Duration::from_secs(2));
    let begun = Instant::now();
    // The answer is often lost with the server.
    let _ = tokio::time::timeout(limit, plugin.controller().shutdown(Empty {})).await;
    let left = limit.saturating_sub(begun.elapsed());
    let Some(status) = plugin.process.ended(left).await else {
        return failed(format!("{limit:?} after Shutdown it still runs"));
    };
    drop(looks);
    hold!(status.success(), "after Shutdown it ended with {status}; {}", plugin.process.last_words());
    if let Address::Unix(path) = &plugin.address {
        hold!(!std::path::Path::new(path).exists(), "after an orderly end its socket {path} is still there");
    }
    Ok(())
}

async fn shutdown_keeps_tasks(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let before = lab.inspect(&plugin, &task.id).await.ok().and_then(|seen| seen.task?.started_at);
    // Newer hosts ask the driver first.
    drop(
        lab.answer(&plugin, "Driver.Shutdown", plugin.driver().shutdown(driver_proto::driver::ShutdownRequest {}))
            .await?,
    );
    let _ = tokio::time::timeout(lab.pace().patience, plugin.controller().shutdown(Empty {})).await;
    plugin.process.ended(lab.pace().patience).await;
    let next = lab.plugin().await?;
    drop(lab.call(&next, "PluginInfo", next.base().plugin_info(PluginInfoRequest {})).await?);
    lab.recover(&next, &task.handle).await?;
    let waiting = lab.waiting(&next, &task.id);
    tokio::time::sleep(lab.pace().hold.min(Duration::from_millis(500))).await;
    if waiting.is_finished() {
        return failed(format!("the task had ended: WaitTask answers {:?}", waiting.await));
    }
    waiting.abort();
    let after = lab.inspect(&next, &task.id).await.ok().and_then(|seen| seen.task?.started_at);
    hold!(before == after, "the task was started anew: it began at {before:?}, now it says {after:?}");
    lab.stop(&next, &task.id, "", STOP_TIMEOUT).await?;
    lab.destroy(&next, &task.id).await
}
