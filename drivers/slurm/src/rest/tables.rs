//! What slurmrestd answers. Fields that this driver does not know are passed over.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::Value;

use crate::answer::{self, Refusal};
use crate::tables::{self, Job, JobId};

/// The oldest version that is read.
const OLDEST: u32 = 38;
/// The one that ends whole arrays where one job of them is named.
const BLUNT: u32 = 39;
/// Indices of our own arrays are below this (`AT_MOST` of submit.rs).
const INDICES: u32 = 1000;
/// Names of an expression of nodes that are written out at most.
const NODES: usize = 100_000;

/// A version of the API: `v0.0.N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v0.0.{}", self.0)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_prefix("v0.0.").and_then(|number| number.parse().ok());
        match number.filter(|number| *number >= OLDEST) {
            Some(number) => Ok(Self(number)),
            None => Err(format!("version {text:?} must be v0.0.{OLDEST} or a later one")),
        }
    }
}

impl Version {
    /// Numbers may be objects, states lists, an environment is a list.
    pub(crate) fn objects(self) -> bool {
        self.0 > OLDEST
    }

    /// One job of an array can be ended. `DELETE /job/{id}` of v0.0.39 to v0.0.41 leaves the index out (openapi
    /// `_handle_job_delete` of Slurm 23.02 to 24.05), so that it would end all; from v0.0.40 on there is a list.
    pub(crate) fn names_members(self) -> bool {
        self.0 != BLUNT
    }

    /// Signals go to a list of jobs (`DELETE /jobs/`), which Slurm 23.11 began with.
    pub(crate) fn signals_by_list(self) -> bool {
        self.0 > BLUNT
    }

    /// What stands before a generic resource (`gres_prepend_tres_type`).
    pub(crate) fn gres(self) -> &'static str {
        if self.0 > BLUNT { "gres/" } else { "gres:" }
    }
}

/// Versions in use: of the controller, and of accounting where it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) slurm: Version,
    pub(crate) accounting: Option<Version>,
}

/// A complaint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) number: i64,
    pub(crate) text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A number, or an object of one: unset and infinite ones are none.
#[derive(Debug, Clone, Copy, Default)]
struct Number(Option<u64>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(number(&Value::deserialize(deserializer)?)))
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Object(object) => {
            let is = |name: &str| object.get(name).and_then(Value::as_bool);
            match (is("set"), is("infinite")) {
                (Some(false), _) | (_, Some(true)) => None,
                _ => object.get("number").and_then(Value::as_u64),
            }
        }
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    }
}

/// One word, or a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(untagged)]
enum Words {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl Words {
    fn all(&self) -> &[String] {
        match self {
            Self::None => &[],
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }
}

/// The one state of several that decides, as `squeue` shows one: that processes may be left counts first.
fn state(words: &Words) -> String {
    const FIRST: [&str; 11] = [
        "COMPLETING",
        "STAGE_OUT",
        "CONFIGURING",
        "RESIZING",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "SPECIAL_EXIT",
        "REQUEUED",
        "STOPPED",
        "REVOKED",
        "RESV_DEL_HOLD",
    ];
    let words = words.all();
    let first = FIRST.iter().find(|first| words.iter().any(|word| word == *first)).copied();
    first.or(words.first().map(String::as_str)).unwrap_or_default().to_owned()
}

#[derive(Deserialize)]
struct JobsAnswer {
    // Without it, it is not an answer: nobody may take it for an empty queue.
    jobs: Vec<JobRow>,
}

#[derive(Deserialize)]
struct JobRow {
    job_id: Number,
    #[serde(default)]
    array_job_id: Number,
    #[serde(default)]
    array_task_id: Number,
    #[serde(default)]
    array_task_string: Option<String>,
    #[serde(default)]
    name: Option<String>,
    job_state: Words,
    #[serde(default)]
    nodes: Option<String>,
    #[serde(default)]
    state_reason: Option<String>,
    #[serde(default)]
    user_id: Number,
    #[serde(default)]
    user_name: Option<String>,
}

/// The jobs of a user in an answer of `/jobs`, which lists those of all. What waits of an array is one row there.
///
/// # Errors
/// It is no such answer, or one with complaints: then jobs may be missing.
pub(crate) fn jobs(body: &[u8], uid: u32, user: Option<&str>) -> Result<Vec<Job>, String> {
    let answer: JobsAnswer = whole(body)?;
    let ours = |row: &JobRow| {
        let named = row.user_name.as_deref().filter(|name| !name.is_empty());
        row.user_id.0 == Some(u64::from(uid)) || named.is_some_and(|name| Some(name) == user)
    };
    let rows: Vec<JobRow> = answer.jobs.into_iter().filter(ours).collect();
    let mut apart: HashMap<u64, HashSet<u32>> = HashMap::new();
    for row in &rows {
        if let (Some(array), Some(index)) = (row.array_job_id.0, index(row)) {
            apart.entry(array).or_default().insert(index);
        }
    }
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let number = row.job_id.0.ok_or("a job has no number")?;
        let array = row.array_job_id.0.filter(|array| *array != 0);
        let ids: Vec<JobId> = match (array, index(&row), row.array_task_string.as_deref()) {
            (None, ..) => vec![JobId::single(number)],
            (Some(array), Some(index), _) => vec![JobId { number: array, index: Some(index) }],
            (Some(array), None, text) => {
                let known = apart.get(&array);
                let waits = indices(text.unwrap_or_default(), |index| known.is_some_and(|k| k.contains(&index)));
                waits?.into_iter().map(|index| JobId { number: array, index: Some(index) }).collect()
            }
        };
        let job = |id: JobId| Job {
            id,
            name: row.name.clone().unwrap_or_default(),
            state: state(&row.job_state),
            nodes: row.nodes.clone().unwrap_or_default(),
            reason: row.state_reason.clone().unwrap_or_default(),
            user: None,
        };
        jobs.extend(ids.into_iter().map(job));
    }
    Ok(jobs)
}

fn index(row: &JobRow) -> Option<u32> {
    row.array_task_id.0.and_then(|index| u32::try_from(index).ok())
}

/// Indices of what waits of an array: `0-3,7`, `0-20:4`, each perhaps with a limit (`%2`). slurmrestd cuts longer texts
/// off (64 bytes unless its SLURM_BITSTR_LEN says more) and writes `...`: then all that may be meant are, but for
/// those that are `known` to stand by themselves.
///
/// # Errors
/// It is another text.
fn indices(text: &str, known: impl Fn(u32) -> bool) -> Result<Vec<u32>, String> {
    let wrong = || format!("{text:?} are no indices of an array");
    let list = text.split('%').next().unwrap_or_default();
    let (list, cut) = match list.find("...") {
        // The last number may have been cut as well.
        Some(at) => (list[..at].rsplit_once(',').map_or("", |(whole, _)| whole), true),
        None => (list, false),
    };
    let mut all = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let read = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (first, last, step) = (read(first)?, read(last)?, read(step)?);
        // MaxArraySize is at most 4,000,001.
        if step == 0 || last > 4_000_001 {
            return Err(wrong());
        }
        all.extend((first..=last).step_by(step as usize));
    }
    if cut {
        let next = all.last().map_or(0, |last| last + 1);
        all.extend((next..INDICES).filter(|index| !known(*index)));
    }
    match all.is_empty() {
        true => Err(wrong()),
        false => Ok(all),
    }
}

#[derive(Deserialize)]
struct AccountsAnswer {
    jobs: Vec<AccountRow>,
}

#[derive(Deserialize)]
struct AccountRow {
    job_id: Number,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    nodes: Option<String>,
    state: AccountState,
    #[serde(default)]
    array: AccountArray,
}

#[derive(Deserialize)]
struct AccountState {
    current: Words,
}

#[derive(Default, Deserialize)]
struct AccountArray {
    #[serde(default)]
    job_id: Number,
    #[serde(default)]
    task_id: Number,
}

/// The jobs in an answer of `slurmdb/…/job/ID`.
///
/// # Errors
/// It is no such answer, or one with complaints.
pub(crate) fn accounts(body: &[u8]) -> Result<Vec<Job>, String> {
    let answer: AccountsAnswer = whole(body)?;
    let job = |row: AccountRow| {
        let number = row.job_id.0.ok_or("a job has no number")?;
        let index = row.array.task_id.0.and_then(|index| u32::try_from(index).ok());
        let id = match row.array.job_id.0.filter(|array| *array != 0) {
            Some(array) => JobId { number: array, index },
            None => JobId::single(number),
        };
        let nodes = row.nodes.filter(|nodes| !nodes.starts_with("None")).unwrap_or_default();
        let (name, state) = (row.name.unwrap_or_default(), state(&row.state.current));
        Ok(Job { id, name, state, nodes, reason: String::new(), user: None })
    };
    answer.jobs.into_iter().map(job).collect()
}

#[derive(Deserialize)]
struct NodesAnswer {
    nodes: Vec<NodeRow>,
}

#[derive(Deserialize)]
struct NodeRow {
    name: String,
    state: Words,
    #[serde(default)]
    state_flags: Words,
}

/// Whether an answer of `/nodes` says of each node of an expression that the controller hears it.
pub(crate) fn heard(body: &[u8], wanted: &str) -> bool {
    /// Flags of nodes that are heard.
    const HARMLESS: [&str; 5] = ["COMPLETING", "DRAIN", "RESERVED", "PLANNED", "CLOUD"];
    let Ok(answer) = whole::<NodesAnswer>(body) else { return false };
    let (Some(wanted), nodes) = (hosts(wanted), answer.nodes) else { return false };
    let heard = |name: &String| {
        let Some(node) = nodes.iter().find(|node| node.name == *name) else { return false };
        // The state comes first, in a list as well.
        let flags = node.state.all().iter().skip(1).chain(node.state_flags.all());
        let harmless = flags.into_iter().all(|flag| HARMLESS.contains(&flag.as_str()));
        harmless && tables::all_heard(&node.state.all().first().map(|s| s.to_lowercase()).unwrap_or_default())
    };
    !wanted.is_empty() && wanted.iter().all(heard)
}

/// The names of an expression such as `a[1-3,07],b`; `None`: it is no expression, or one of too many.
fn hosts(text: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    for (at, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                names.extend(host(&text[begin..at])?);
                begin = at + 1;
            }
            _ => {}
        }
    }
    (depth == 0 && names.len() <= NODES).then_some(names)
}

fn host(text: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = text.split_once('[') else {
        return (!text.is_empty()).then(|| vec![text.to_owned()]);
    };
    let (ranges, after) = rest.split_once(']')?;
    let after = if after.is_empty() { vec![String::new()] } else { host(after)? };
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (width, first, last) = (first.len(), first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        for number in first..=last {
            names.extend(after.iter().map(|after| format!("{before}{number:0width$}{after}")));
            if names.len() > NODES {
                return None;
            }
        }
    }
    Some(names)
}

/// Reads an answer that complains about nothing.
fn whole<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, String> {
    let errors = errors(body);
    if !errors.is_empty() {
        return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    }
    serde_json::from_slice(body).map_err(|why| format!("it cannot be read: {why}"))
}

/// The complaints of an answer; none of something else.
pub(crate) fn errors(body: &[u8]) -> Vec<Fault> {
    #[derive(Deserialize)]
    struct Errors {
        #[serde(default)]
        errors: Vec<Value>,
    }
    let Ok(answer) = serde_json::from_slice::<Errors>(body) else { return Vec::new() };
    answer.errors.iter().map(fault).collect()
}

fn fault(value: &Value) -> Fault {
    // `error_code` in answers to submissions up to v0.0.38.
    let number = ["error_number", "error_code", "code"].iter().find_map(|name| value[*name].as_i64());
    let texts = ["description", "error", "message", "string"].iter().filter_map(|name| value[*name].as_str());
    let mut told: Vec<&str> = Vec::new();
    for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
        if !told.iter().any(|before| before.contains(text)) {
            told.push(text);
        }
    }
    let (number, text) = (number.unwrap_or(-1), told.join(": "));
    Fault { number, text: if text.is_empty() { format!("error {number}") } else { text } }
}

/// What `DELETE /jobs/` says of single jobs (v0.0.40 and later); a number of 0 is no complaint.
pub(crate) fn signal_errors(body: &[u8]) -> Vec<Fault> {
    #[derive(Deserialize)]
    struct Statuses {
        #[serde(default)]
        status: Option<Vec<Status>>,
    }
    #[derive(Deserialize)]
    struct Status {
        #[serde(default)]
        error: Value,
    }
    let Ok(answer) = serde_json::from_slice::<Statuses>(body) else { return Vec::new() };
    let faults = answer.status.into_iter().flatten().filter(|status| !status.error.is_null());
    faults.map(|status| fault(&status.error)).filter(|fault| fault.number != 0).collect()
}

/// The number of the job that a submission was given: at the top, or in `result` (v0.0.39 to v0.0.41).
pub(crate) fn job_id(body: &[u8]) -> Option<u64> {
    #[derive(Default, Deserialize)]
    struct Submitted {
        #[serde(default)]
        job_id: Number,
        #[serde(default)]
        result: Option<Result>,
    }
    #[derive(Deserialize)]
    struct Result {
        #[serde(default)]
        job_id: Number,
    }
    let answer: Submitted = serde_json::from_slice(body).ok()?;
    let given = |number: Number| number.0.filter(|number| *number > 0);
    given(answer.job_id).or_else(|| given(answer.result?.job_id))
}

/// The refusal in an answer to a submission that was given no number; `None`: the job may have been taken.
///
/// Numbers are those of slurm_errno.h; texts are the same as `sbatch` prints.
pub(crate) fn refusal(status: u16, body: &[u8]) -> Option<Refusal> {
    /// EAGAIN, ESLURM_ERROR_ON_DESC_TO_RECORD_COPY, ESLURM_ACCOUNTING_POLICY. The last one stands for a limit of
    /// submissions as well as for one of size: `sbatch` is told which, slurmrestd is not.
    const FULL: [i64; 3] = [11, 2007, 2050];
    /// ESLURM_INVALID_ARRAY.
    const ARRAY: i64 = 2081;
    /// slurmrestd itself could not read the request: 9000 to 9003 (ESLURM_REST_…) and 9200 to 9299 (ESLURM_DATA_…).
    const UNREAD: [std::ops::Range<i64>; 2] = [9000..9004, 9200..9300];
    let errors = errors(body);
    let any = |is: &dyn Fn(&Fault) -> bool| errors.iter().any(is);
    let known = errors.iter().filter_map(|error| answer::refusal(&error.text)).next();
    match () {
        () if any(&|error| FULL.contains(&error.number)) => Some(Refusal::Full),
        () if any(&|error| error.number == ARRAY) => Some(Refusal::Array),
        () if known.is_some() => known,
        () if status == 400 && any(&|error| UNREAD.iter().any(|range| range.contains(&error.number))) => {
            Some(Refusal::Wrong)
        }
        () => None,
    }
}

/// The versions in an OpenAPI description that this release reads: the latest one, but v0.0.39 last.
///
/// # Errors
/// There is none, or it is no description.
pub(crate) fn served(body: &[u8]) -> Result<Served, String> {
    #[derive(Deserialize)]
    struct Description {
        paths: HashMap<String, IgnoredAny>,
    }
    let description: Description =
        serde_json::from_slice(body).map_err(|why| format!("it is no OpenAPI description: {why}"))?;
    let best = |service: &str| {
        let version = |path: &String| path.strip_prefix(service)?.split('/').next()?.parse::<Version>().ok();
        description.paths.keys().filter_map(version).max_by_key(|version| (version.names_members(), *version))
    };
    match best("/slurm/") {
        Some(slurm) => Ok(Served { slurm, accounting: best("/slurmdb/") }),
        None => Err(format!("it serves no version of /slurm/ from v0.0.{OLDEST} on; start slurmrestd with one")),
    }
}

/// Whether an answer of `/ping` has a controller that answers.
pub(crate) fn pinged(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Pings {
        pings: Vec<Value>,
    }
    // `ping` of v0.0.38, `pinged` of later ones, `responding` of the latest.
    let up = |ping: &Value| ping["ping"] == "UP" || ping["pinged"] == "UP" || ping["responding"] == true;
    serde_json::from_slice::<Pings>(body).is_ok_and(|answer| answer.pings.iter().any(up))
}

/// The release in the `meta` of any answer (`Slurm` at first, later `slurm`).
pub(crate) fn release(body: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let told = ["Slurm", "slurm"].iter().find_map(|name| answer["meta"][*name]["release"].as_str());
    told.unwrap_or("of an unknown release").to_owned()
}

/// The controller's clock in an answer of `/diag`, in seconds since 1970.
pub(crate) fn time(body: &[u8]) -> Option<u64> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    number(&answer["statistics"]["req_time"]).filter(|time| *time > 0)
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
