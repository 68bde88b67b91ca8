//! Asks a Prometheus.

use std::{collections::BTreeMap, fmt, sync::Arc};

use api::query::percent_encode;
use serde::Deserialize;
use tls::Roots;

/// A Prometheus. Cheap to clone.
#[derive(Clone)]
pub struct History {
    url: Arc<str>,
    roots: Option<Roots>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Prometheus' answer to a range query (its HTTP API, "Range queries"), as far as it is read here.
#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    data: Data,
}

#[derive(Debug, Default, Deserialize)]
struct Data {
    #[serde(default)]
    result: Vec<Series>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Series {
    #[serde(default)]
    pub(crate) metric: BTreeMap<String, String>,
    /// Seconds of the Unix time, and the value as text.
    pub(crate) values: Vec<(f64, String)>,
}

impl History {
    /// The one at this URL, `http://` or `https://`; for the latter its certificate must come from `roots`.
    #[must_use]
    pub fn new(url: &str, roots: Option<Roots>) -> Self {
        Self { url: url.trim_end_matches('/').into(), roots }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The series of a query from `from` to `to`, in seconds of the Unix time, a value every `step` seconds.
    ///
    /// # Errors
    /// Why it could not be asked, or what its answer lacks.
    pub(crate) async fn ask(&self, query: &str, from: u64, to: u64, step: u64) -> Result<Vec<Series>, String> {
        let form = format!("query={}&start={from}&end={to}&step={step}", percent_encode(query));
        let url = format!("{}/api/v1/query_range", self.url);
        let body = fetch::fetch(self.roots.as_ref(), &url, None, Some(form)).await?;
        series(&body)
    }
}

/// The series of an answer.
pub(crate) fn series(body: &[u8]) -> Result<Vec<Series>, String> {
    let answer: Answer = serde_json::from_slice(body).map_err(|e| format!("its answer is none of Prometheus: {e}"))?;
    Ok(answer.data.result)
}
