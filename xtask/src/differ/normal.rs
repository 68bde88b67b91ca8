//! What differs from run to run and says nothing – ids, ports, paths, durations, times – becomes a word. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const DYNAMIC_PORTS: std::ops::RangeInclusive<u64> = 20_000..=32_000;

/// Text with the given words replaced (longest first), and with everything that looks like an id, a port of the dynamic
/// range or a duration.
pub(super) fn text(text: &str, known: &[(String, &str)]) -> String {
    let mut out = text.to_owned();
    for (word, with) in known {
        out = out.replace(word.as_str(), with);
    }
    durations(&ids(&out))
}

/// UUIDs become `<id>`, wherever they are; numbers of the dynamic range of ports become `<port>`, hashes `<hash>`.
fn ids(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match rest.get(..36) {
            Some(word) if is_uuid(word) => {
                out.push_str("<id>");
                36
            }
            _ => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    words(
        &out,
        |c| c.is_ascii_alphanumeric(),
        |word| {
            let is_port = word.len() == 5 && word.parse::<u64>().is_ok_and(|n| DYNAMIC_PORTS.contains(&n));
            let is_hash = word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
            if is_hash { Some("<hash>".to_owned()) } else { is_port.then(|| "<port>".to_owned()) }
        },
    )
}

fn is_uuid(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let is_hex = |part: &&str| part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.iter().map(|p| p.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(is_hex)
}

/// `1.23s`, `17m3.5s`, `12ms` become `<time>` when they are not a whole number of one unit.
fn durations(text: &str) -> String {
    words(
        text,
        |c| c.is_ascii_alphanumeric() || c == '.',
        |word| {
            let digits = word.bytes().filter(u8::is_ascii_digit).count();
            let rest: String = word.chars().filter(|c| !c.is_ascii_digit()).collect();
            let is_time = word.starts_with(|c: char| c.is_ascii_digit())
                && matches!(rest.as_str(), ".s" | ".ms" | ".µs" | "m.s" | "hm.s");
            (digits > 0 && is_time).then(|| "<time>".to_owned())
        },
    )
}

/// The text with each run of such characters replaced where there is something for it.
fn words(text: &str, belongs: impl Fn(char) -> bool, replace: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(&belongs) {
        out.push_str(&rest[..start]);
        let end = rest[start..].find(|c| !belongs(c)).map_or(rest.len(), |n| start + n);
        let word = &rest[start..end];
        out.push_str(&replace(word).unwrap_or_else(|| word.to_owned()));
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Fields that never say the same on two systems.
const DROPPED: &[&str] = &[
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "AllocModifyIndex",
    "JobCreateIndex",
    "JobSpecModifyIndex",
    "EvalCreateIndex",
    "Index",
    "LastIndex",
    "SnapshotIndex",
    "KnownLeader",
    "LastContact",
    "RequestTime",
    "NextToken",
    "CreateTime",
    "ModifyTime",
    "SubmitTime",
    "Time",
    "Timestamp",
    "StartedAt",
    "FinishedAt",
    "LastRestart",
    "RequireProgressBy",
    "RequireProgressByNs",
    "VersionTag",
    "ModTime",
];

/// An answer of the API: without times and indexes, with null, empty and false the same, its texts normalised.
pub(super) fn answer(value: &Value, known: &[(String, &str)]) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !DROPPED.contains(&name.as_str()));
            let kept = kept
                .map(|(name, value)| (text(name, known), answer(value, known)))
                .filter(|(_, value)| !is_nothing(value));
            Value::Object(kept.collect::<Map<_, _>>())
        }
        Value::Array(all) => {
            // Things with names are told apart by these.
            let names: Option<BTreeSet<&str>> = all.iter().map(|value| value["Name"].as_str()).collect();
            let of_all = names.filter(|names| !all.is_empty() && names.len() == all.len());
            let named = || {
                all.iter().map(|value| (value["Name"].as_str().unwrap_or_default().to_owned(), answer(value, known)))
            };
            if of_all.is_some() {
                Value::Object(named().collect())
            } else {
                let mut list: Vec<Value> = all.iter().map(|value| answer(value, known)).collect();
                // Registrations come by their ids, which are random.
                if all.iter().all(|value| value["ServiceName"].is_string()) {
                    list.sort_by_key(Value::to_string);
                }
                Value::Array(list)
            }
        }
        Value::String(s) => Value::String(text(s, known)),
        Value::Number(n) if n.as_u64().is_some_and(|n| DYNAMIC_PORTS.contains(&n)) => Value::String("<port>".into()),
        other => other.clone(),
    }
}

/// The API's zero values: whether they are left out is a question of form.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_ports_and_durations_become_words() {
        let id = "0d6c0a4e-3a1f-4f68-9d1b-0a4d6b4f9b10";
        for (given, wanted) in [
            (format!("alloc {id} replaced"), "alloc <id> replaced"),
            (format!("_nomad-task-{id}-group-g"), "_nomad-task-<id>-group-g"),
            ("listens at 127.0.0.1:21345".into(), "listens at 127.0.0.1:<port>"),
            ("port 8080 and 19999".into(), "port 8080 and 19999"),
            ("Task restarting in 1.08s".into(), "Task restarting in <time>"),
            ("after 17m3.5s of 20s".into(), "after <time> of 20s"),
            ("version 1.9.4".into(), "version 1.9.4"),
        ] {
            assert_eq!(text(&given, &[]), wanted, "{given}");
        }
        assert_eq!(text(&format!("a-{id}"), &[]), "a-<id>");
        assert_eq!(text("/tmp/x-1/data/alloc", &[("/tmp/x-1/data".into(), "<data>")]), "<data>/alloc");
    }

    #[test]
    fn answers_lose_indexes_and_zero_values() {
        let given = json!({"ID": "a", "CreateIndex": 5, "Warnings": "", "Stop": false, "Meta": null,
                "List": [{"N": 0, "M": 1}]});
        assert_eq!(answer(&given, &[]), json!({"ID": "a", "List": [{"M": 1}]}));
        assert_eq!(
            answer(&json!([{"Name": "b", "N": 1}, {"Name": "a"}]), &[]),
            json!({"a": {"Name": "a"}, "b": {"Name": "b", "N": 1}})
        );
    }
}
