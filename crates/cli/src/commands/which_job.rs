//! Which job an operand names: its id, or the beginning of one; and in which namespace it is, where all are asked.

use anyhow::{Result, bail};
use api::{call, client::ClientError, shapes::JobListStub};
use http::StatusCode;

use crate::conn::Conn;

/// The job of that id, else the only one whose id begins so, with the connection to its namespace.
///
/// # Errors
/// When there is none, or it is not clear which one is meant: then with the candidates.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<(Conn, String)> {
    let job = meant(conn.ask(call::jobs().with("prefix", prefix)).await?, prefix)?;
    Ok((conn.in_namespace(job.namespace.as_str()), job.id.to_string()))
}

/// The same of parameterized jobs. Whoever may dispatch a job need not be allowed to list any: then its id has to be
/// whole.
///
/// # Errors
/// When it is not clear which one is meant.
pub(crate) async fn find_parameterized(conn: &Conn, prefix: &str) -> Result<(Conn, String)> {
    let status = |error: &anyhow::Error| error.downcast_ref::<ClientError>().and_then(ClientError::status);
    // The usual case first: of a job that is dispatched often, the list of what begins so is long.
    if conn.namespace() != "*" && !prefix.is_empty() {
        match conn.ask(call::job(prefix)).await {
            Ok(_) => return Ok((conn.clone(), prefix.to_owned())),
            Err(error) if matches!(status(&error), Some(StatusCode::NOT_FOUND | StatusCode::FORBIDDEN)) => {}
            Err(error) => return Err(error),
        }
    }
    let found = match conn.ask(call::jobs().with("prefix", prefix)).await {
        Ok(found) => candidates(found, prefix),
        Err(error) if status(&error) == Some(StatusCode::FORBIDDEN) => Vec::new(),
        Err(error) => return Err(error),
    };
    if found.is_empty() {
        // The servers say what is wrong with it.
        return Ok((conn.clone(), prefix.to_owned()));
    }
    let job = meant(found, prefix)?;
    Ok((conn.in_namespace(job.namespace.as_str()), job.id.to_string()))
}

/// The connection to the namespace of the job of that id. It is another one only where all namespaces are asked, and
/// one of them has such a job.
///
/// # Errors
/// When several namespaces have one.
pub(crate) async fn home(conn: &Conn, id: &str) -> Result<Conn> {
    if conn.namespace() != "*" {
        return Ok(conn.clone());
    }
    let jobs = conn.ask(call::jobs().with("prefix", id)).await?;
    Ok(exact(&jobs, id)?.map_or_else(|| conn.clone(), |job| conn.in_namespace(job.namespace.as_str())))
}

/// The job of that id, if there is one.
///
/// # Errors
/// When several namespaces have one.
pub(crate) fn exact<'a>(jobs: &'a [JobListStub], id: &str) -> Result<Option<&'a JobListStub>> {
    let found: Vec<&JobListStub> = jobs.iter().filter(|job| job.id.as_str() == id).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        many => {
            let names: Vec<&str> = many.iter().map(|job| job.namespace.as_str()).collect();
            bail!("{} namespaces have a job {id:?}: {}; choose one with -namespace", many.len(), names.join(", "))
        }
    }
}

/// What may be dispatched of the jobs whose ids begin so. A job of exactly that id is meant, whatever it is.
fn candidates(found: Vec<JobListStub>, prefix: &str) -> Vec<JobListStub> {
    let whole = found.iter().any(|job| job.id.as_str() == prefix);
    found.into_iter().filter(|job| whole || job.parameterized_job).collect()
}

/// The one that is meant of the jobs whose ids begin so.
fn meant(found: Vec<JobListStub>, prefix: &str) -> Result<JobListStub> {
    if let Some(job) = exact(&found, prefix)? {
        return Ok(job.clone());
    }
    match found.as_slice() {
        // Scripts and the stock tests look for this line, as it stands.
        [] => bail!("No job(s) with prefix or ID {prefix:?} found"),
        [one] => Ok(one.clone()),
        [first, ..] => {
            let several = found.iter().any(|job| job.namespace != first.namespace);
            let name = |job: &JobListStub| match several {
                true => format!("{} in namespace {}", job.id, job.namespace),
                false => job.id.to_string(),
            };
            let names: Vec<String> = found.iter().map(name).collect();
            bail!("{} job names start with {prefix:?}: {}", found.len(), names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, namespace: &str) -> JobListStub {
        JobListStub { id: id.into(), namespace: namespace.into(), ..JobListStub::default() }
    }

    #[test]
    fn an_exact_id_wins_and_what_is_not_clear_is_listed() {
        let jobs = [job("web", "default"), job("web2", "default"), job("web", "prod"), job("worker", "prod")];
        let of = |jobs: &[JobListStub], prefix: &str| {
            let begins = jobs.iter().filter(|job| job.id.as_str().starts_with(prefix)).cloned().collect();
            meant(begins, prefix).map(|job| format!("{} {}", job.id, job.namespace)).map_err(|error| error.to_string())
        };
        assert_eq!(of(&jobs[..2], "web"), Ok("web default".to_owned()));
        assert_eq!(of(&jobs, "web2"), Ok("web2 default".to_owned()));
        assert_eq!(of(&jobs, "wo"), Ok("worker prod".to_owned()));
        assert_eq!(of(&jobs, "x"), Err("No job(s) with prefix or ID \"x\" found".to_owned()));
        assert_eq!(of(&jobs[..2], "we"), Err("2 job names start with \"we\": web, web2".to_owned()));
        assert_eq!(
            of(&jobs, "web"),
            Err("2 namespaces have a job \"web\": default, prod; choose one with -namespace".to_owned())
        );
        assert_eq!(
            of(&jobs, "we"),
            Err("3 job names start with \"we\": web in namespace default, web2 in namespace default, web in \
                namespace prod"
                .to_owned())
        );
    }

    #[test]
    fn a_beginning_is_that_of_a_parameterized_job_when_one_is_dispatched() {
        let template = |id| JobListStub { parameterized_job: true, ..job(id, "default") };
        let ids = |prefix: &str| {
            let found = [template("encode"), job("encode/dispatch-1", "default"), job("en", "default")];
            let begins = found.into_iter().filter(|job| job.id.as_str().starts_with(prefix)).collect();
            candidates(begins, prefix).iter().map(|job| job.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids("enc"), ["encode"]);
        assert_eq!(ids("en").len(), 3, "one has exactly that id: it is meant");
        assert_eq!(ids("x"), Vec::<String>::new());
    }
}
