//! The result of a bench run.

/// One figure of one agent.
pub(crate) struct Row {
    figure: String,
    agent: &'static str,
    unit: &'static str,
    samples: Vec<f64>,
    error: Option<String>,
}

impl Row {
    /// A figure with its samples.
    pub(crate) fn new(figure: impl Into<String>, agent: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { figure: figure.into(), agent, unit, samples, error: None }
    }
    /// A bench that could not be done.
    pub(crate) fn failed(bench: &str, agent: &'static str, error: &str) -> Self {
        Self { figure: bench.to_owned(), agent, unit: "", samples: Vec::new(), error: Some(error.to_owned()) }
    }
    fn median(&self) -> Option<f64> {
        quantile(&self.samples, 0.5)
    }
    /// The figure and its median, for those who watch: a run that is broken off has no table.
    pub(crate) fn brief(&self) -> String {
        format!("{}: {:.2} {}", self.figure.trim(), self.median().unwrap_or(f64::NAN), self.unit)
    }
}

/// A quantile of unsorted samples.
pub(crate) fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a short list"
    )]
    let index = ((sorted.len().saturating_sub(1)) as f64 * q).round() as usize;
    sorted.get(index).copied()
}

/// Prints all rows; where Drover and another agent were measured, the ratio as well.
pub(crate) fn print(rows: &[Row]) {
    println!(
        "{:56} {:8} {:>10} {:>10} {:>10} {:>4} {:6} ratio",
        "figure", "agent", "median", "min", "max", "n", "unit"
    );
    for row in rows {
        if let Some(error) = &row.error {
            println!("{:56} {:8} could not be measured: {error}", row.figure, row.agent);
            continue;
        }
        let q = |q| quantile(&row.samples, q).unwrap_or(f64::NAN);
        let ours = rows.iter().find(|r| r.agent == "drover" && r.figure == row.figure).and_then(Row::median);
        let ratio = match (row.agent, row.median(), ours) {
            ("nomad" | "before", Some(theirs), Some(ours)) if ours > 0.0 => {
                format!("{:.1} x drover", theirs / ours)
            }
            _ => String::new(),
        };
        println!(
            "{:56} {:8} {:>10.2} {:>10.2} {:>10.2} {:>4} {:6} {ratio}",
            row.figure,
            row.agent,
            q(0.5),
            q(0.0),
            q(1.0),
            row.samples.len(),
            row.unit
        );
    }
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_of_short_lists() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
