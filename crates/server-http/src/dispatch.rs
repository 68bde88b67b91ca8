//! What happens to every request: cleaned path, route, method, region, and what every answer carries.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use api::{
    query::{Query, percent_decode},
    shapes::AclCaller,
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    middleware::{self, Next},
};
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ORIGIN},
};
use tracing::level_filters::LevelFilter;

use crate::{
    audit::{About, Audit, Auth, Kind, Pair},
    bodies::SMALL,
    caller::{Caller, denied, token},
    compress,
    connections::waits,
    explain,
    follow::{ending, while_it_stands},
    guard::Guard,
    job_statuses,
    needs::{Asked, Needs},
    reply::{HttpError, Reply},
    request::{App, Ctx, Sender},
    routes::{self, Verb},
};

pub(crate) async fn dispatch(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let gzip = compress::wanted(request.headers());
    // What waits for a change takes as long as nothing changes.
    let begun = Instant::now();
    let measured = (!waits(request.uri().query())).then_some(begun);
    let told = Told::of(&request, begun);
    let mut response = match begin(app.options.audit.as_ref(), &request, who(&app, &request)).await {
        Err(unwritten) => unwritten.into_response(),
        Ok(pair) => {
            let answered = match early(&app.options.guard, &request) {
                Some(early) => early,
                None => answer(&app, request, pair.as_ref().map(Pair::about).unwrap_or_default()).await,
            };
            let response = answered.map_or_else(HttpError::into_response, Reply::into_response);
            end(pair, response).await
        }
    };
    if let Some(contacts) = &app.options.contacts {
        contacts().tell(response.headers_mut());
    }
    told.log(&response);
    if let Some(begun) = measured {
        app.answering.answered(begun);
    }
    for (name, value) in &app.options.response_headers {
        response.headers_mut().insert(name, value.clone());
    }
    compress::apply(response, gzip)
}

/// Who sends a request, for the audit log; nobody where there is none.
fn who(app: &App, request: &Request<Body>) -> Auth {
    let (Some(authority), Some(_)) = (&app.authority, &app.options.audit) else { return Auth::default() };
    match Caller::of(Some(authority), &app.server, token(request.headers())) {
        Ok(caller) => caller.known().map(Auth::from).unwrap_or_default(),
        Err(_) => Auth { kind: Kind::Invalid, ..Auth::default() },
    }
}

/// The first event of a request, where there is an audit log.
fn begin(
    audit: Option<&Audit>,
    request: &Request<Body>,
    auth: Auth,
) -> impl Future<Output = Result<Option<Pair>, HttpError>> + use<> {
    let begun = audit.map(|audit| audit.begin(request, auth));
    async move {
        match begun {
            None => Ok(None),
            Some(begun) => begun.await.map(Some),
        }
    }
}

/// The second one.
async fn end(pair: Option<Pair>, response: Response<Body>) -> Response<Body> {
    match pair {
        None => response,
        Some(pair) => pair.complete(response).await,
    }
}

/// Has a router whose requests this agent answers leave events. For agents without a server: what they pass on leaves
/// events where it is answered. Who sends a request is in its extensions, an [`AclCaller`].
pub fn audited(router: Router, audit: Option<Audit>) -> Router {
    match audit {
        None => router,
        Some(audit) => router.layer(middleware::from_fn_with_state(audit, pair_of)),
    }
}

async fn pair_of(State(audit): State<Audit>, request: Request<Body>, next: Next) -> Response<Body> {
    // Servers say who it is, where there are ACLs.
    let auth = request.extensions().get::<AclCaller>().cloned().map(Auth::from).unwrap_or_default();
    match audit.begin(&request, auth).await {
        Err(unwritten) => unwritten.into_response(),
        Ok(pair) => pair.complete(next.run(request).await).await,
    }
}

/// What the log tells of a request at debug: without its query, which may hold a token.
struct Told(Option<(Method, String, Instant)>);

impl Told {
    fn of(request: &Request<Body>, begun: Instant) -> Self {
        let wanted = LevelFilter::current() >= LevelFilter::DEBUG;
        Self(wanted.then(|| (request.method().clone(), request.uri().path().to_owned(), begun)))
    }

    fn log(self, response: &Response<Body>) {
        if let Some((method, path, begun)) = self.0 {
            tracing::debug!(target: "http", %method, path, status = response.status().as_u16(),
                duration = ?begun.elapsed(), "request complete");
        }
    }
}

/// What is said before anybody looks at the path: refusals of web pages, and what the browser of a trusted one asks
/// first.
fn early(guard: &Guard, request: &Request<Body>) -> Option<Result<Reply, HttpError>> {
    if let Err(why) = guard.admit(request) {
        return Some(Err(HttpError::new(StatusCode::FORBIDDEN, why)));
    }
    let asks =
        request.method() == Method::OPTIONS && request.headers().get(ORIGIN).is_some_and(|origin| guard.trusts(origin));
    asks.then(|| Ok(preflight()))
}

/// Gives the answers of another router what every answer of this API has: refusals of web pages, redirects to clean
/// paths, headers of the operator, gzip. For agents without a server, which answer some requests by themselves and
/// pass the others on.
pub fn as_every_answer(
    router: Router,
    headers: Vec<(HeaderName, HeaderValue)>,
    guard: Guard,
    audit: Option<Audit>,
) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new((headers, guard, audit)), dressed))
}

type Dress = Arc<(Vec<(HeaderName, HeaderValue)>, Guard, Option<Audit>)>;

async fn dressed(State(dress): State<Dress>, request: Request<Body>, next: Next) -> Response<Body> {
    let (headers, guard, audit) = &*dress;
    let gzip = compress::wanted(request.headers());
    let told = Told::of(&request, Instant::now());
    let clean = || cleaned(request.uri().path()).map(|clean| Ok(to_clean(&clean, request.uri().query())));
    let mut response = match early(guard, &request).or_else(clean) {
        None => next.run(request).await,
        // What is answered here and now.
        Some(answer) => match begin(audit.as_ref(), &request, Auth::default()).await {
            Err(unwritten) => unwritten.into_response(),
            Ok(pair) => end(pair, answer.map_or_else(HttpError::into_response, Reply::into_response)).await,
        },
    };
    told.log(&response);
    for (name, value) in headers {
        response.headers_mut().insert(name, value.clone());
    }
    compress::apply(response, gzip)
}

fn to_clean(clean: &str, query: Option<&str>) -> Reply {
    let to = query.map_or_else(|| clean.to_owned(), |q| format!("{clean}?{q}"));
    Reply::redirect(StatusCode::MOVED_PERMANENTLY, &to)
}

fn preflight() -> Reply {
    Reply::empty(StatusCode::OK)
        .with_header(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, PUT, POST, DELETE"))
        .with_header(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"))
}

async fn answer(app: &Arc<App>, request: Request<Body>, about: About) -> Result<Reply, HttpError> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if percent_decode(&path, false).is_none() {
        return Err(HttpError::bad_request(format_args!(
            "the path {:?} is not valid percent-encoded UTF-8",
            head.uri.path()
        )));
    }
    if let Some(clean) = cleaned(&path) {
        return Ok(to_clean(&clean, head.uri.query()));
    }
    if path == "/" {
        return Ok(Reply::redirect(StatusCode::TEMPORARY_REDIRECT, "/ui/"));
    }
    let Some((route, params)) = routes::find(&path) else {
        return Err(HttpError::new(StatusCode::NOT_FOUND, ""));
    };
    let verb = Verb::of(&head.method);
    let Some((needs, run)) = verb.and_then(|verb| route.answering(verb)) else {
        return Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "Invalid method"));
    };
    if app.authority.is_none() && of_acls(route.pattern) {
        return Err(HttpError::bad_request("ACL support disabled"));
    }
    let query = Query::parse(head.uri.query().unwrap_or_default())?;
    let region = query.text("region");
    if !region.is_empty() && region != app.server.config().region {
        return Err(HttpError::internal("No path to region"));
    }
    // Whoever serves this router has decided that it may answer; the parameter is checked all the same.
    query.flag("stale")?;
    let shown = token(&head.headers).to_owned();
    let caller = decided(app, needs, &shown, &Asked { params: &params, query: &query })?;
    // But for the one that explains, no handler says anything else to whoever may nothing: it hears so before it has
    // sent its body. A session, whose token may come in its first message, begins with GET.
    let explains = route.pattern == explain::PATTERN;
    if matches!(needs, Needs::Handler(_)) && !explains && verb != Some(Verb::Get) && caller.may_nothing() {
        return Err(denied());
    }
    let sender: Option<Sender> = head.extensions.remove();
    let upgrade = Mutex::new(head.extensions.remove());
    let (method, uri, headers) = (head.method, head.uri, head.headers);
    let ctx = Ctx {
        app: app.clone(),
        method,
        uri,
        params,
        query,
        headers,
        caller,
        sender,
        about,
        body: Mutex::new(body),
        gate: None,
        upgrade,
    };
    // Rights may end while an answer goes on.
    let ending = ending(&path).filter(|_| app.authority.is_some());
    let judged = ending.map(|ending| (ending, ctx.params.clone(), ctx.query.clone()));
    // Rights may change while a query waits for a change of what it reads.
    let by_body = route.pattern == job_statuses::PATTERN;
    let waits =
        app.authority.is_some() && (ctx.method == Method::GET || by_body) && !ctx.query.text("index").is_empty();
    let (ctx, again) = if waits && by_body {
        let body = ctx.bytes().await?;
        if body.len() > SMALL {
            let why = "a query that waits names its jobs in at most 64 KiB";
            return Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        // A copy: while it waits, it takes nothing of the room that bodies have together.
        let body = Bytes::copy_from_slice(&body);
        let again = ctx.once_more().with_body(Body::from(body.clone()));
        (ctx.with_body(Body::from(body)), Some(again))
    } else {
        let again = waits.then(|| ctx.once_more());
        (ctx, again)
    };
    let guarded = async |ctx| {
        app.answering.guarded(run(ctx)).await.unwrap_or_else(|said| {
            tracing::error!(pattern = route.pattern, said, "a handler of the HTTP API has panicked");
            Err(HttpError::internal(format_args!(
                "could not answer {}: the server has a defect; see its log",
                route.pattern
            )))
        })
    };
    let mut answered = guarded(ctx).await;
    if let Some(mut again) = again {
        let now = decided(app, needs, &shown, &Asked { params: &again.params, query: &again.query })?;
        if !now.is_same(&again.caller) {
            // This time it does not wait: nobody would judge after that.
            again.query = again.query.without("index");
            again.caller = now;
            answered = guarded(again).await;
        }
    }
    let Some((ending, params, query)) = judged else { return answered };
    let app = app.clone();
    let stands = move || decided(&app, needs, &shown, &Asked { params: &params, query: &query }).is_ok();
    Ok(answered?.map_body(|body| while_it_stands(body, ending, stands)))
}

/// Who shows this token, if it may what the endpoint needs of this request.
fn decided(app: &App, needs: Needs, shown: &str, asked: &Asked<'_>) -> Result<Caller, HttpError> {
    let state = app.server.snapshot();
    let caller = Caller::within(app.authority.as_ref(), &app.server, &state, shown);
    // What is open to all is open with any token.
    let caller = if matches!(needs, Needs::Open) { caller.or_else(|_| Ok(Caller::nobody(app))) } else { caller }?;
    match needs.met(asked, &state, &mut |need| caller.may(need)) {
        true => Ok(caller),
        false => Err(denied()),
    }
}

/// Whether there is nothing to say under a path while everybody may everything. Introductions of nodes are no ACLs.
fn of_acls(pattern: &str) -> bool {
    pattern.starts_with("/v1/acl/") && !pattern.starts_with("/v1/acl/identity/")
}

/// The path that a client should have used, when it is another one: doubled slashes and dots are not part of names,
/// unless they are encoded.
fn cleaned(path: &str) -> Option<String> {
    if !path.contains("//") && !path.split('/').any(|s| s == "." || s == "..") {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if path.ends_with('/') && clean.len() > 1 {
        clean.push('/');
    }
    (clean != path).then_some(clean)
}

#[cfg(test)]
mod tests {
    use super::cleaned;

    #[test]
    fn clean_paths() {
        for (path, clean) in [
            ("/v1/jobs", None),
            ("/v1/job//scale", Some("/v1/job/scale")),
            ("//v1/jobs/", Some("/v1/jobs/")),
            ("/v1/../../x", Some("/x")),
            ("/v1/./jobs", Some("/v1/jobs")),
            ("//", Some("/")),
            ("/v1/job/a..b", None),
            ("/v1/job/%2E%2E", None),
            ("/v1/job/x%2F%2Fy", None),
        ] {
            assert_eq!(cleaned(path).as_deref(), clean, "{path}");
        }
    }
}
