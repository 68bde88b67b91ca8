//! The site that a driver has now, or why it has none.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use driver_sdk::health::for_fingerprint;
use driver_sdk::{Context, Fingerprint, RemoteError};

use crate::handle::HandleV1;
use crate::poll::Loop;
use crate::provider::Provider;
use crate::site::Site;
use crate::{Answer, lock};

/// A site, and the loop that looks at its instances.
type Watched<P> = (Arc<Site<P>>, Loop<HandleV1>);

/// The place of a driver's site.
pub struct Slot<P: Provider> {
    context: OnceLock<Context>,
    site: Mutex<Option<Watched<P>>>,
    /// Why there is no site.
    missing: Mutex<String>,
    /// A fingerprint after an unhealthy one is on its way.
    looks_again: Arc<AtomicBool>,
}

impl<P: Provider> Default for Slot<P> {
    fn default() -> Self {
        Self {
            context: OnceLock::new(),
            site: Mutex::default(),
            missing: Mutex::default(),
            looks_again: Arc::default(),
        }
    }
}

impl<P: Provider> Slot<P> {
    /// The host's channel.
    pub fn attach(&self, context: Context) {
        let _ = self.context.set(context);
    }

    /// From now on there is no site, for this reason.
    pub fn empty(&self, why: &str) {
        *lock(&self.site) = None;
        why.clone_into(&mut lock(&self.missing));
    }

    /// From now on this is the site; its instances are looked at this often.
    pub fn fill(&self, site: Site<P>, every: Duration) {
        let site = Arc::new(site);
        let looking = Loop::start(site.poller.clone(), site.clone(), every);
        *lock(&self.site) = Some((site, looking));
    }

    /// The site.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: why there is none.
    pub fn site(&self) -> Answer<Arc<Site<P>>> {
        let site = lock(&self.site).as_ref().map(|(site, _)| site.clone());
        site.ok_or_else(|| RemoteError::could_not_ask(lock(&self.missing).clone()))
    }

    /// Identity of the runtime; empty without a site.
    pub fn name(&self) -> String {
        lock(&self.site).as_ref().map(|(site, _)| site.name.clone()).unwrap_or_default()
    }

    /// What the place answers in time for a fingerprint.
    ///
    /// # Errors
    /// The fingerprint of a driver without a site, or whose place gives no good answer.
    pub async fn place(&self) -> Result<(Arc<Site<P>>, P::Place), Fingerprint> {
        let Ok(site) = self.site() else {
            return Err(Fingerprint::undetected(lock(&self.missing).clone()));
        };
        let asked = site.clone();
        let ask = async move { asked.place(true).await };
        let context = self.context.get().cloned();
        match for_fingerprint(ask, || site.health.known(), context, &self.looks_again).await {
            Some(Ok(place)) => Ok((site, place)),
            Some(Err(why)) => Err(Fingerprint::unhealthy(why.to_string())),
            None => Err(Fingerprint::unhealthy(format!("the {} of {} has not answered yet", P::PLACE, site.name))),
        }
    }
}
