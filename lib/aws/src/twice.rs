//! Which keys have several live instances, on whichever page of a listing they are.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// What a listing has shown is looked at again for so long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3 * 3600);

/// Owner and key.
pub type OwnedKey = (String, String);

/// Live instances of each owner and key that listings have shown, by id, and when.
#[derive(Debug, Default)]
pub struct Shown(Mutex<HashMap<OwnedKey, HashMap<String, Instant>>>);

impl Shown {
    /// Notes the live instances of a page (id → whose), and answers the ids that other pages have shown of the same
    /// keys. They may have ended meanwhile.
    pub fn elsewhere(&self, here: &HashMap<String, OwnedKey>) -> Vec<String> {
        let now = Instant::now();
        let mut shown = lock(&self.0);
        shown.retain(|_, ids| {
            ids.retain(|_, at| at.elapsed() < FORGOTTEN_AFTER);
            !ids.is_empty()
        });
        for (id, key) in here {
            shown.entry(key.clone()).or_default().insert(id.clone(), now);
        }
        let keys: HashSet<&OwnedKey> = here.values().collect();
        let of_page = keys.into_iter().filter_map(|key| shown.get(key)).flat_map(HashMap::keys);
        of_page.filter(|id| !here.contains_key(*id)).cloned().collect()
    }
}

/// Those of a page whose keys have other live instances as well.
pub fn doubled(here: HashMap<String, OwnedKey>, elsewhere: impl IntoIterator<Item = OwnedKey>) -> HashSet<String> {
    let mut instances: HashMap<OwnedKey, usize> = HashMap::new();
    for key in here.values().cloned().chain(elsewhere) {
        *instances.entry(key).or_default() += 1;
    }
    here.into_iter().filter(|(_, key)| instances.get(key).is_some_and(|n| *n > 1)).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_instance_is_seen_from_whichever_page() {
        let shown = Shown::default();
        let page = |ids: &[(&str, &str)]| {
            ids.iter()
                .map(|(id, key)| ((*id).to_owned(), ("o".to_owned(), (*key).to_owned())))
                .collect::<HashMap<_, _>>()
        };
        let first = page(&[("1", "k"), ("2", "l")]);
        assert!(shown.elsewhere(&first).is_empty() && doubled(first, []).is_empty());
        let second = page(&[("3", "k")]);
        assert_eq!(shown.elsewhere(&second), ["1"]);
        assert_eq!(doubled(second.clone(), [("o".into(), "k".into())]), HashSet::from(["3".to_owned()]));
        assert!(doubled(second, []).is_empty(), "the other one has ended");
        assert_eq!(doubled(page(&[("1", "k"), ("2", "l"), ("3", "k")]), []).len(), 2);
    }
}
