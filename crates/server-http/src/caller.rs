//! Who sends a request, and what that caller may.

use std::{collections::HashSet, fmt, sync::Arc};

use access::{Capability, Decision, Need};
use api::client::Gate;
use http::{HeaderMap, HeaderName, StatusCode, header::AUTHORIZATION};
use model::Namespace;
use server::ServerHandle;
use state::State;

use crate::{
    authority::{Authority, Known},
    reply::HttpError,
    request::{App, Ctx},
};

/// The answer to whoever may not.
pub(crate) const DENIED: &str = "Permission denied";

/// Who sends a request. Without ACLs everybody may everything.
#[derive(Clone)]
pub(crate) struct Caller(Option<Arc<Known>>);

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caller").field(&self.0.is_some()).finish()
    }
}

/// The header of tokens.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-nomad-token");

/// The token of a request: the header of its own, else a bearer token. Empty = none is shown.
pub(crate) fn token(headers: &HeaderMap) -> &str {
    let text = |name: &HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim).unwrap_or_default();
    let own = text(&TOKEN);
    if !own.is_empty() {
        return own;
    }
    let bearer = text(&AUTHORIZATION).split_once(' ');
    bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map_or("", |(_, token)| token.trim())
}

pub(crate) fn denied() -> HttpError {
    HttpError::new(StatusCode::FORBIDDEN, DENIED)
}

impl Caller {
    /// Whoever shows this token.
    pub(crate) fn of(authority: Option<&Authority>, server: &ServerHandle, token: &str) -> Result<Self, HttpError> {
        Self::within(authority, server, &server.snapshot(), token)
    }

    /// Whoever shows this token, in this state.
    pub(crate) fn within(
        authority: Option<&Authority>,
        server: &ServerHandle,
        state: &State,
        token: &str,
    ) -> Result<Self, HttpError> {
        match authority {
            None => Ok(Self(None)),
            Some(known) => known.caller(server, state, token).map(|known| Self(Some(known))).ok_or_else(denied),
        }
    }

    /// Somebody without rights.
    pub(crate) fn nobody(app: &App) -> Self {
        Self(app.authority.as_ref().map(|_| Arc::new(Known::nobody())))
    }

    /// Has nothing changed between the two? They are rights of the same token.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Who it is; None = there are no ACLs.
    pub(crate) fn known(&self) -> Option<&Known> {
        self.0.as_deref()
    }

    /// May the caller?
    pub(crate) fn may(&self, need: &Need<'_>) -> bool {
        self.0.as_ref().is_none_or(|known| known.access.allows(need))
    }

    /// The decision with its reason; None = there are no ACLs.
    pub(crate) fn decision(&self, need: &Need<'_>) -> Option<Decision<'_>> {
        self.0.as_ref().map(|known| known.access.decide(need))
    }

    /// Refuses what the caller may not.
    pub(crate) fn check(&self, need: &Need<'_>) -> Result<(), HttpError> {
        if self.may(need) { Ok(()) } else { Err(denied()) }
    }

    /// Nothing is allowed but what is open to all.
    pub(crate) fn may_nothing(&self) -> bool {
        self.0.as_ref().is_some_and(|known| known.access.is_powerless())
    }

    /// Everything is allowed, to whatever namespace it belongs.
    pub(crate) fn sees_all(&self) -> bool {
        self.0.as_ref().is_none_or(|known| known.access.is_management())
    }
}

/// The namespaces whose objects an answer may hold: those that are asked for and that the caller may see. It comes
/// from [`Ctx::visible`] only.
pub(crate) enum Visible {
    /// One, which was decided before the handler ran.
    One(Namespace),
    /// All.
    All,
    /// These of all.
    Some(HashSet<Namespace>),
}

impl Visible {
    /// May an object of this namespace be shown?
    pub(crate) fn shows(&self, namespace: &Namespace) -> bool {
        match self {
            Self::One(one) => one == namespace,
            Self::All => true,
            Self::Some(some) => some.contains(namespace),
        }
    }

    /// The one namespace that is asked for.
    pub(crate) fn one(&self) -> Option<&Namespace> {
        match self {
            Self::One(one) => Some(one),
            Self::All | Self::Some(_) => None,
        }
    }
}

/// What the services of a namespace need.
pub(crate) fn of_services(namespace: &str) -> Need<'_> {
    Need::Services(namespace)
}

/// What lists need of each namespace.
pub(crate) const LISTS_JOBS: &[Capability] = &[Capability::ListJobs];
/// What objects of jobs need.
pub(crate) const READS_JOBS: &[Capability] = &[Capability::ReadJob];

impl Ctx {
    /// The namespaces of the request in which the caller has one of these.
    pub(crate) fn visible(&self, state: &State, any_of: &'static [Capability]) -> Visible {
        self.visible_where(state, self.query.namespace(), |namespace| Need::Namespace { namespace, any_of })
    }

    /// The same for a namespace that need not be the request's.
    pub(crate) fn visible_where(&self, state: &State, wanted: Namespace, need: impl Fn(&str) -> Need<'_>) -> Visible {
        if wanted != "*" {
            return match self.caller.may(&need(wanted.as_str())) {
                true => Visible::One(wanted),
                false => Visible::Some(HashSet::new()),
            };
        }
        if self.caller.sees_all() {
            return Visible::All;
        }
        let names = state.namespaces().map(|n| n.name.clone());
        Visible::Some(names.filter(|name| self.caller.may(&need(name.as_str()))).collect())
    }
}

/// A request whose handler decides whether it may be answered. Parts of it can be read; its server is reached by a
/// decision only.
pub(crate) struct Unchecked(Ctx);

impl Unchecked {
    pub(crate) fn new(ctx: Ctx) -> Self {
        Self(ctx)
    }

    /// What the request says, to decide with.
    pub(crate) fn said(&self) -> &Ctx {
        &self.0
    }

    /// The same request, in which each parameter stands once: whoever gets it reads what was judged here.
    pub(crate) fn once(self) -> Result<Self, HttpError> {
        let path = format!("{}?{}", self.0.uri.path(), self.0.query.once());
        let uri: http::Uri = path.parse().map_err(HttpError::internal)?;
        let query = api::query::Query::parse(uri.query().unwrap_or_default())?;
        Ok(Self(Ctx { uri, query, ..self.0 }))
    }

    /// The same request under another path, with the parts of that.
    pub(crate) fn renamed(self, path: &str, params: Vec<(&'static str, String)>) -> Result<Self, HttpError> {
        let uri: http::Uri = path.parse().map_err(HttpError::internal)?;
        let query = api::query::Query::parse(uri.query().unwrap_or_default())?;
        Ok(Self(Ctx { uri, query, params, ..self.0 }))
    }

    /// The request, if its caller may.
    pub(crate) fn check(self, need: &Need<'_>) -> Result<Ctx, HttpError> {
        self.0.caller.check(need)?;
        Ok(self.0)
    }

    /// The request, if its caller may all of this.
    pub(crate) fn check_all<'n>(self, needs: impl IntoIterator<Item = Need<'n>>) -> Result<Ctx, HttpError> {
        for need in needs {
            self.0.caller.check(&need)?;
        }
        Ok(self.0)
    }

    /// The request, whose answer goes on only once its first message has passed the gate.
    pub(crate) fn behind(self, gate: Gate) -> Ctx {
        Ctx { gate: Some(gate), ..self.0 }
    }

    /// The request, only to tell its sender that it is refused.
    pub(crate) fn into_refusal(self) -> Ctx {
        self.0
    }

    /// The request, for an answer that leaves out what its caller may not see. `some` = there is something that it may.
    pub(crate) fn filtering(self, some: impl FnOnce(&Caller) -> bool) -> Result<Ctx, HttpError> {
        if some(&self.0.caller) { Ok(self.0) } else { Err(denied()) }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::token;

    #[test]
    fn the_token_of_a_request() {
        for (headers, shown) in [
            (&[][..], ""),
            (&[("x-nomad-token", " a ")], "a"),
            (&[("authorization", "bEARER b")], "b"),
            (&[("authorization", "Basic b")], ""),
            (&[("x-nomad-token", "a"), ("authorization", "Bearer b")], "a"),
            (&[("x-nomad-token", " "), ("authorization", "Bearer b")], "b"),
        ] {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            assert_eq!(token(&map), shown, "{headers:?}");
        }
    }
}
