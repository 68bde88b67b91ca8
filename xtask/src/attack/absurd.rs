//! Requests that ask for too much, or name what nobody can address.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::kit::{self, Attack, Others, ask, both, cli, job, peak_mib, refused, said, server, text};
use crate::{interop::cluster::Agent, local::until};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "absurd-count",
        does: "asks for 100,000,000 allocations by registration, plan, scaling, with remote_exec; stores such jobs \
            without a limit, \
        starts with one, and \
               reverts to them and dispatches them",
        holds: "refused by name at every door; what is stored costs neither memory nor a start, and goes away as any \
            other job",
        run: absurd_count,
    },
    Attack {
        name: "json-bomb",
        does: "sends 13 MiB of JSON with 200,000 groups, six at once, and a job that is too large with its defaults",
        holds: "4xx; less than 150 MiB for each request; others are answered",
        run: json_bomb,
    },
    Attack {
        name: "deep-and-long",
        does: "bodies of 17 MiB with and without a length, deep nesting in JSON and HCL, HCL that multiplies itself, \
            hard regular \
        expressions and filters",
        holds: "4xx or 5xx with a reason, nothing kept, others are answered",
        run: deep_and_long,
    },
    Attack {
        name: "names",
        does: "jobs, groups and tasks called .., ../../svc, ESC, bidi, 3.5 MB; a job called x/allocations, a service \
            called x//y",
        holds: "refused, or addressed by its name with every verb; no control character reaches a terminal",
        run: names,
    },
];

const HUGE: u32 = 100_000_000;

fn absurd_count() -> Result<String> {
    let mut agent = server("count", "server {\n  job_max_count = 0\n}\n")?;
    let batch = |id: &str, count: u32, parameterized: bool| {
        let mut job = job(id, "raw_exec", count, "/bin/true", &[]);
        job["Job"]["Type"] = "batch".into();
        job["Job"]["TaskGroups"][0]["Update"] = Value::Null;
        if parameterized {
            job["Job"]["ParameterizedJob"] = json!({"Payload": "optional"});
        }
        job
    };
    // As a release without a limit has stored them.
    for stored in [
        batch("stored", HUGE, false),
        batch("template", HUGE, true),
        batch("shrunk", HUGE, false),
        batch("shrunk", 1, false),
    ] {
        agent.put("/v1/jobs", &stored)?;
    }
    let stored = peak_mib(agent.pid())?;
    agent.stop()?;
    let file = agent.dir().join("agent.hcl");
    fs::write(&file, fs::read_to_string(&file)?.replace("  job_max_count = 0\n", ""))?;
    agent.restart()?;
    kit::answers(&agent)?;
    let others = Others::of(&agent);

    let too_many = "at most 50000 are allowed";
    refused(&agent, "PUT", "/v1/jobs", &batch("new", HUGE, false), 400..501, too_many)?;
    refused(&agent, "PUT", "/v1/job/new/plan", &batch("new", HUGE, false), 400..501, too_many)?;
    refused(&agent, "PUT", "/v1/job/stored/plan", &batch("stored", HUGE, false), 400..501, too_many)?;
    refused(&agent, "PUT", "/v1/jobs", &job("far", "remote_exec", HUGE, "/bin/true", &[]), 400..501, too_many)?;
    agent.put("/v1/jobs", &job("small", "raw_exec", 1, "/bin/true", &[]))?;
    let scale = json!({"Count": HUGE, "Target": {"Group": "g"}});
    refused(&agent, "PUT", "/v1/job/small/scale", &scale, 400..501, too_many)?;
    refused(&agent, "PUT", "/v1/job/shrunk/revert", &json!({"JobID": "shrunk", "JobVersion": 0}), 400..501, too_many)?;
    refused(&agent, "PUT", "/v1/job/template/dispatch", &json!({}), 400..501, too_many)?;
    agent.put("/v1/job/stored/evaluate", &json!({"JobID": "stored"}))?;
    until("the decision about the stored job", kit::BOUND, || {
        let evals = agent.list("/v1/job/stored/evaluations")?;
        Ok(evals.iter().all(|e| e["Status"] != "pending").then_some(()))
    })?;
    for id in ["stored", "template", "shrunk"] {
        agent.delete(&format!("/v1/job/{id}?purge=true"))?;
    }
    let left = agent.get("/v1/jobs")?;
    ensure!(left.as_array().is_some_and(|l| l.len() == 1), "purged jobs are left: {left}");
    let waited = others.were_answered()?;
    let peak = peak_mib(agent.pid())?.max(stored);
    ensure!(peak < 400, "the server took {peak} MiB");
    Ok(format!("peak {peak} MiB, others waited {waited} ms at most"))
}

fn json_bomb() -> Result<String> {
    let agent = server("json", "")?;
    let groups = (0..200_000)
        .map(|n| format!("{{\"Name\":\"group-number-{n:06}\",\"Tasks\":[{{\"Name\":\"t\"}}]}}"))
        .collect::<Vec<_>>()
        .join(",");
    let bomb = format!("{{\"Job\":{{\"ID\":\"bomb\",\"TaskGroups\":[{groups}]}}}}");
    let rest = kit::resident_mib(agent.pid())?;
    kit::forget_peak(agent.pid())?;
    let others = Others::of(&agent);
    let one = ask(&agent, "PUT", "/v1/jobs", &[], bomb.as_bytes())?;
    ensure!((400..500).contains(&one.status), "{}", one.short());
    let peak = peak_mib(agent.pid())?.saturating_sub(rest);
    ensure!(peak < 150, "one request of {} MiB cost {peak} MiB", bomb.len() >> 20);
    let all: Vec<Result<u16>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..6).map(|_| scope.spawn(|| Ok(ask(&agent, "PUT", "/v1/jobs", &[], bomb.as_bytes())?.status))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| anyhow::bail!("asking has panicked"))).collect()
    });
    for status in all {
        let status = status?;
        ensure!((400..500).contains(&status), "one of six was answered with {status}");
    }
    let six = peak_mib(agent.pid())?.saturating_sub(rest);
    ensure!(six < 6 * 100, "six requests at once cost {six} MiB");
    // Small in objects, large as a job.
    let mut large = job("large", "raw_exec", 1, "/bin/true", &[]);
    large["Job"]["TaskGroups"][0]["Tasks"][0]["Templates"] =
        (0..3).map(|n| json!({"EmbeddedTmpl": "x".repeat(3 << 20), "DestPath": format!("local/{n}")})).collect();
    let too_large = ask(&agent, "PUT", "/v1/jobs", &[], large.to_string().as_bytes())?;
    ensure!((400..500).contains(&too_large.status), "a job that is too large: {}", too_large.short());
    let waited = others.were_answered()?;
    let kept = kit::resident_mib(agent.pid())?.saturating_sub(rest);
    Ok(format!("one {peak} MiB, six {six} MiB, kept {kept} MiB, others waited {waited} ms at most"))
}

fn deep_and_long() -> Result<String> {
    let agent = server("deep", "")?;
    let others = Others::of(&agent);
    let long = vec![b' '; 17 << 20];
    let answer = ask(&agent, "PUT", "/v1/jobs", &[], &long)?;
    ensure!(answer.status == 413, "17 MiB with a length: {}", answer.short());
    let chunked = chunks(&agent, 17 << 20)?;
    ensure!(chunked == 413, "17 MiB in chunks: {chunked}");

    let nested = |open: &str, close: &str, n: usize| format!("{}{}", open.repeat(n), close.repeat(n));
    let parse = |hcl: String| json!({"JobHCL": hcl, "Canonicalize": true}).to_string();
    let locals = (1..40)
        .map(|n| format!("  l{n} = \"${{local.l{0}}}${{local.l{0}}}${{local.l{0}}}\"\n", n - 1))
        .collect::<String>();
    let laughs = format!(
        "locals {{\n  l0 = \"ha\"\n{locals}}}\njob \"x\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \
            local.l39\n    }}\n  \
        }}\n}}\n"
    );
    let mut regex = job("regex", "raw_exec", 1, "/bin/true", &[]);
    regex["Job"]["Constraints"] =
        json!([{"LTarget": "${attr.kernel.name}", "RTarget": "(a{1000}){1000}", "Operand": "regexp"}]);
    let bodies: [(&str, &str, String); 7] = [
        ("PUT", "/v1/jobs", nested("{\"Job\":", "}", 100_000)),
        ("PUT", "/v1/jobs", nested("[", "]", 90_000)),
        ("PUT", "/v1/jobs/parse", parse(format!("job \"x\" {{ meta {{ a = {} }} }}", nested("[", "]", 50_000)))),
        (
            "PUT",
            "/v1/jobs/parse",
            parse(format!("job \"x\" {{ meta {{ a = {}1{} }} }}", "(".repeat(50_000), ")".repeat(50_000))),
        ),
        ("PUT", "/v1/jobs/parse", parse(laughs)),
        ("PUT", "/v1/jobs", regex.to_string()),
        ("PUT", "/v1/search", "{\"Prefix\":".repeat(5_000)),
    ];
    for (method, path, body) in &bodies {
        let answer = ask(&agent, method, path, &[], body.as_bytes())?;
        ensure!(
            (400..501).contains(&answer.status) && !answer.body.is_empty(),
            "{path} {}…: {}",
            &body[..40.min(body.len())],
            answer.short()
        );
    }
    for filter in [
        format!("{}Name == \"x\"{}", "(".repeat(3_000), ")".repeat(3_000)),
        "Name matches \"(a{1000}){1000}\"".into(),
        "not ".repeat(3_000),
    ] {
        let filter: String = filter.bytes().map(|b| format!("%{b:02X}")).collect();
        let answer = ask(&agent, "GET", &format!("/v1/jobs?filter={filter}"), &[], b"")?;
        ensure!((400..501).contains(&answer.status), "a filter: {}", answer.short());
    }
    let said = cli(&agent, &["job", "validate", "/dev/null"])?;
    ensure!(!said.status.success(), "an empty file is no job");
    let waited = others.were_answered()?;
    let peak = peak_mib(agent.pid())?;
    ensure!(peak < 400, "the server took {peak} MiB");
    Ok(format!("peak {peak} MiB, others waited {waited} ms at most"))
}

/// The status of a body in chunks of that many bytes together.
fn chunks(agent: &Agent, bytes: usize) -> Result<u16> {
    use std::io::Write;
    let mut stream = kit::connect(agent)?;
    let host = agent.address().trim_start_matches("http://").to_owned();
    write!(stream, "PUT /v1/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let piece = vec![b' '; 1 << 16];
    for _ in 0..bytes >> 16 {
        // Who refuses it need not read it.
        if write!(stream, "{:x}\r\n", piece.len())
            .and_then(|()| stream.write_all(&piece))
            .and_then(|()| stream.write_all(b"\r\n"))
            .is_err()
        {
            break;
        }
    }
    let _ = stream.write_all(b"0\r\n\r\n");
    Ok(kit::read(&mut stream)?.status)
}

fn names() -> Result<String> {
    let agent = both("names", "")?;
    let long = "n".repeat(3_500_000);
    let bad = ["..", ".", "../../svc", "a\u{1b}[31mb", "a\u{202e}b", "a\u{0}b", long.as_str(), ""];
    for name in bad {
        let as_id = name != "../../svc";
        let mut of_group = job("fine", "raw_exec", 1, "/bin/true", &[]);
        of_group["Job"]["TaskGroups"][0]["Name"] = name.into();
        let mut of_task = job("fine", "raw_exec", 1, "/bin/true", &[]);
        of_task["Job"]["TaskGroups"][0]["Tasks"][0]["Name"] = name.into();
        let of_id = job(name, "raw_exec", 1, "/bin/true", &[]);
        for (what, job) in [("id", of_id), ("group", of_group), ("task", of_task)]
            .into_iter()
            .filter(|(what, _)| as_id || *what != "id")
        {
            let answer = ask(&agent, "PUT", "/v1/jobs", &[], job.to_string().as_bytes())?;
            let shown: String = name.chars().take(20).collect();
            ensure!((400..501).contains(&answer.status), "{what} {shown:?} was taken: {}", answer.short());
            ensure!(
                answer.body.len() < 20_000,
                "the refusal of {what} {shown:?} repeats all of it: {} bytes",
                answer.body.len()
            );
        }
    }
    // What is taken can be addressed, by every verb.
    let mut ids = Vec::new();
    for id in ["x/allocations", "x//y", "../../svc", "a\nb", "a b", "ünï"] {
        let answer = ask(
            &agent,
            "PUT",
            "/v1/jobs",
            &[],
            job(id, "raw_exec", 1, "/bin/sleep", &["71001"]).to_string().as_bytes(),
        )?;
        if answer.status != 200 {
            continue;
        }
        ids.push(id);
        let path: String = id.bytes().map(|b| format!("%{b:02X}")).collect();
        let found = agent.get(&format!("/v1/job/{path}"))?;
        ensure!(text(&found["ID"]) == id, "GET of {id:?} gave {}", found["ID"]);
        let shown = cli(&agent, &["job", "status"])?;
        ensure!(!said(&shown).contains('\u{1b}'), "job status prints control characters");
        let stopped = cli(&agent, &["job", "stop", "-detach", "-yes", "-purge", id])?;
        ensure!(stopped.status.success(), "job stop {id:?}: {}", said(&stopped));
        ensure!(agent.get(&format!("/v1/job/{path}")).is_err(), "{id:?} is still there");
    }
    ensure!(ids.contains(&"x/allocations"), "a slash is a part of ordinary ids");
    let answer = ask(&agent, "GET", "/v1/jobs", &[], b"")?;
    ensure!(answer.body.len() < 10_000, "the list of jobs has {} bytes", answer.body.len());
    Ok(format!("{} odd ids are taken and addressed: {ids:?}", ids.len()))
}
