//! What an executor leaves in its state directory, as flat JSON: it is read by people in need, by agents of other
//! releases, and by nothing that is in a hurry. The executor only writes it, so it has a writer of a few lines and no
//! JSON library; controllers read it with the feature `serde`.

use prost::Message;

/// How to find an executor and, without it, everything that it was responsible for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct StateRecord {
    /// Protocol version on the socket.
    pub protocol: u32,
    /// [`Spec::id`](crate::Spec::id).
    pub id: String,
    /// The machine's boot: pids of another boot mean nothing.
    pub boot_id: String,
    /// Pid of the executor.
    pub executor_pid: i32,
    /// Its start in clock ticks since boot, which tells a reused pid apart.
    pub executor_start: u64,
    /// Pid of the workload and of its session; 0 for a log collector.
    pub workload_pid: i32,
    /// Start of the workload in clock ticks since boot.
    pub workload_start: u64,
    /// The workload has not begun: who finds this without an executor removes what there is and may start it anew.
    pub launching: bool,
    /// Unix time in nanoseconds.
    pub started_at_ns: u64,
    /// Directory in a version 2 hierarchy; empty without one.
    pub cgroup: String,
    /// Directories in version 1 hierarchies.
    pub cgroup_v1: Vec<V1Path>,
}

/// Directory of a workload in one version 1 hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct V1Path {
    /// Controller of the hierarchy.
    pub controller: String,
    /// Absolute path.
    pub path: String,
}

/// How a workload ended.
#[derive(Clone, PartialEq, Eq, Message)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct ResultRecord {
    /// Exit status; 128 + signal when a signal ended it.
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    #[prost(int32, tag = "2")]
    pub signal: i32,
    /// The kernel killed a process of the tree for want of memory within its limit.
    #[prost(bool, tag = "3")]
    pub oom_killed: bool,
    /// Unix time in nanoseconds.
    #[prost(uint64, tag = "4")]
    pub started_at_ns: u64,
    /// Unix time in nanoseconds.
    #[prost(uint64, tag = "5")]
    pub finished_at_ns: u64,
    /// The executor was gone without leaving a result; exit code and signal are unknown and the tree has been killed.
    #[prost(bool, tag = "6")]
    pub lost: bool,
    /// What else there is to say, for people.
    #[prost(string, tag = "7")]
    pub reason: String,
    /// Bytes of output that could not be written before the end, because the disk was full or failing.
    #[prost(uint64, tag = "8")]
    pub log_bytes_lost: u64,
}

impl StateRecord {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let mut json = Json::open();
        json.number("protocol", self.protocol);
        json.string("id", &self.id);
        json.string("boot_id", &self.boot_id);
        json.number("executor_pid", self.executor_pid);
        json.number("executor_start", self.executor_start);
        json.number("workload_pid", self.workload_pid);
        json.number("workload_start", self.workload_start);
        json.number("launching", self.launching);
        json.number("started_at_ns", self.started_at_ns);
        json.string("cgroup", &self.cgroup);
        json.key("cgroup_v1");
        json.text.push('[');
        for (n, v1) in self.cgroup_v1.iter().enumerate() {
            if n > 0 {
                json.text.push(',');
            }
            let mut one = Json::open();
            one.string("controller", &v1.controller);
            one.string("path", &v1.path);
            json.text.push_str(&one.close());
        }
        json.text.push(']');
        json.close()
    }
}

impl ResultRecord {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let mut json = Json::open();
        json.number("exit_code", self.exit_code);
        json.number("signal", self.signal);
        json.number("oom_killed", self.oom_killed);
        json.number("started_at_ns", self.started_at_ns);
        json.number("finished_at_ns", self.finished_at_ns);
        json.number("lost", self.lost);
        json.string("reason", &self.reason);
        json.number("log_bytes_lost", self.log_bytes_lost);
        json.close()
    }
}

/// Writes one JSON object.
struct Json {
    text: String,
}

impl Json {
    fn open() -> Json {
        Json { text: String::from("{") }
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.quote(key);
        self.text.push(':');
    }

    /// Numbers and booleans: whatever displays as its JSON.
    fn number(&mut self, key: &str, value: impl std::fmt::Display) {
        use std::fmt::Write;
        self.key(key);
        let _ = write!(self.text, "{value}");
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quote(value);
    }

    fn quote(&mut self, value: &str) {
        use std::fmt::Write;
        self.text.push('"');
        for c in value.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(self.text, "\\u{:04x}", c as u32);
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }

    fn close(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn json_reads_back() {
        let state = StateRecord {
            protocol: 1,
            id: "a\"b\\c\n\u{1}ü".into(),
            executor_pid: -4,
            cgroup_v1: vec![V1Path { controller: "cpu".into(), path: "/x".into() }; 2],
            ..Default::default()
        };
        assert_eq!(serde_json::from_str::<StateRecord>(&state.to_json()).unwrap(), state);
        let result = ResultRecord { exit_code: 137, oom_killed: true, reason: "x".into(), ..Default::default() };
        assert_eq!(serde_json::from_str::<ResultRecord>(&result.to_json()).unwrap(), result);
        assert_eq!(serde_json::from_str::<ResultRecord>("{\"later\":1}").unwrap(), ResultRecord::default());
    }
}
