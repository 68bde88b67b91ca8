//! An HTTP API that changes while connections to it stay open: a server leads, or passes requests on.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::Request,
    response::{IntoResponse, Response},
};
use futures::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use tower::{Service, ServiceExt as _};

/// The endpoints that answer now. Cheap to clone; all clones answer alike.
#[derive(Clone)]
pub(crate) struct Switch(Arc<ArcSwap<Router>>);

impl Switch {
    /// Until the first [`Switch::set`], nothing is answered but that the agent starts.
    pub(crate) fn new() -> Self {
        let starting = || async { (StatusCode::SERVICE_UNAVAILABLE, "this agent is starting") };
        Self(Arc::new(ArcSwap::from_pointee(Router::new().fallback(starting))))
    }

    /// These answer requests from now on. Those under way end as they began.
    pub(crate) fn set(&self, router: Router) {
        self.0.store(Arc::new(router));
    }

    /// To be served.
    pub(crate) fn router(&self) -> Router {
        Router::new().fallback_service(self.clone())
    }
}

impl Service<Request> for Switch {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let router = Router::clone(&self.0.load());
        router.oneshot(request).map(|answer| answer.map(IntoResponse::into_response)).boxed()
    }
}
