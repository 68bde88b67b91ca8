//! Values that many allocations and records have in common, kept once.
//!
//! Ten thousand tasks of a job differ in their ids and times and in little else: their events say the same, they
//! follow one policy, they name one driver. A copy for each would be most of what a server keeps in memory. A
//! [`Common`] value is looked up when it is made, so that equal ones are one piece of memory, and is a pointer from
//! then on; a [`Text`] is a text kept this way. Nothing else about a value changes: it is compared, printed and
//! written as before.
//!
//! What is in the tables shows in nothing but the memory that is used: functions stay functions of their arguments.
//!
//! Looking up costs a hash and a short lock: this is for what is read and kept, not for what is computed with.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::HashSet,
    fmt,
    hash::{BuildHasher as _, Hash, Hasher, RandomState},
    ops::Deref,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Parts of a table: threads that look for different values seldom wait for each other.
const PARTS: usize = 16;
/// A part with fewer values is never looked through for unused ones.
const FEW: usize = 64;

/// A type of which equal values are kept once.
pub trait Kept: Eq + Hash + Send + Sync + Sized + 'static {
    /// The values that are in use: one table for the process.
    fn table() -> &'static Table<Self>;
}

/// The values of one type that are in use.
pub struct Table<T> {
    parts: [Mutex<Part<T>>; PARTS],
    hasher: RandomState,
}

struct Part<T> {
    values: HashSet<Arc<T>>,
    /// With so many, those that nobody uses are looked for.
    sweep_at: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        let part = || Mutex::new(Part { values: HashSet::new(), sweep_at: FEW });
        Self { parts: std::array::from_fn(|_| part()), hasher: RandomState::new() }
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl<T: Eq + Hash> Table<T> {
    fn part(&self, value: &T) -> MutexGuard<'_, Part<T>> {
        #[allow(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
        let at = self.hasher.hash_one(value) as usize % PARTS;
        // No change of a part can be left half done.
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that equals the value; the value itself when there is none yet.
    fn get(&self, value: T) -> Arc<T> {
        // Dropped after the part is free again, for values may hold values of other tables.
        let mut unused = Vec::new();
        let mut part = self.part(&value);
        if let Some(known) = part.values.get(&value) {
            return known.clone();
        }
        // Two users that leave at the same moment may each take the other for the last one, and the value stays.
        // Looked for when the part has grown to twice of what was in use, so that there are never more unused values
        // than used ones.
        if part.values.len() >= part.sweep_at {
            unused.extend(part.values.extract_if(|v| Arc::strong_count(v) == 1));
            part.sweep_at = FEW.max(part.values.len() * 2);
        }
        let new = Arc::new(value);
        part.values.insert(new.clone());
        new
    }

    /// Takes a value out when nobody but the caller uses it.
    fn release(&self, last: &Arc<T>) {
        let mut part = self.part(last);
        // The table's and the caller's; another thread may have found it in the meantime.
        if Arc::strong_count(last) == 2 {
            part.values.remove(&**last);
            let len = part.values.len();
            if part.values.capacity() > FEW.max(len * 8) {
                part.values.shrink_to(len * 2);
            }
        }
    }
}

/// A value that others have in common with this one: equal values are one piece of memory while anybody uses them.
/// Serde form: the value's.
pub struct Common<T: Kept>(Arc<T>);

impl<T: Kept> Common<T> {
    /// The one that equals the value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(T::table().get(value))
    }
}

impl<T: Kept> Drop for Common<T> {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 2 {
            T::table().release(&self.0);
        }
    }
}

impl<T: Kept> Clone for Common<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Kept> Deref for Common<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Kept + Default> Default for Common<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Kept> From<T> for Common<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: Kept> PartialEq for Common<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || *self.0 == *other.0
    }
}

impl<T: Kept> Eq for Common<T> {}

impl<T: Kept> Hash for Common<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T: Kept + fmt::Debug> fmt::Debug for Common<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Kept + Serialize> Serialize for Common<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, T: Kept + Deserialize<'de>> Deserialize<'de> for Common<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        T::deserialize(d).map(Self::new)
    }
}

impl Kept for Box<str> {
    fn table() -> &'static Table<Self> {
        static TEXTS: LazyLock<Table<Box<str>>> = LazyLock::new(Table::default);
        &TEXTS
    }
}

/// A text that others have in common with this one; see the module. The empty one takes no memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Text(Option<Common<Box<str>>>);

impl Text {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Some(text) => text,
            None => "",
        }
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

// By the text, as a map that is asked for a plain one expects.
impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other)
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<Box<str>> for Text {
    fn from(text: Box<str>) -> Self {
        Self((!text.is_empty()).then(|| Common::new(text)))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Box::<str>::from(text).into()
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.into_boxed_str().into()
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        self == other.as_str()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type of its own for each test: tables are the process's, and tests run at the same time.
    macro_rules! probe {
        ($name:ident) => {
            #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
            struct $name(u32);
            impl Kept for $name {
                fn table() -> &'static Table<Self> {
                    static VALUES: LazyLock<Table<$name>> = LazyLock::new(Table::default);
                    &VALUES
                }
            }
        };
    }

    fn kept<T: Kept>() -> usize {
        T::table().parts.iter().map(|p| p.lock().unwrap().values.len()).sum()
    }

    #[test]
    fn equal_values_are_one_and_leave_with_their_last_user() {
        probe!(Probe);
        let (a, b, c) = (Common::new(Probe(1)), Common::new(Probe(1)), Common::new(Probe(2)));
        assert!(Arc::ptr_eq(&a.0, &b.0) && !Arc::ptr_eq(&a.0, &c.0));
        assert!(a == b && a != c && a.0.0 == 1);
        assert_eq!(kept::<Probe>(), 2);
        drop(a);
        assert_eq!(kept::<Probe>(), 2, "it has a user still");
        drop((b, c));
        assert_eq!(kept::<Probe>(), 0);
        assert_eq!(Common::new(Probe(1)).0.0, 1, "it may come again");
    }

    #[test]
    fn what_was_left_behind_is_swept() {
        probe!(Probe);
        let table = Probe::table();
        // As if two users had left at the same moment.
        (0..10_000).for_each(|n| drop(table.get(Probe(n))));
        assert!(kept::<Probe>() <= PARTS * FEW, "{} unused values are kept", kept::<Probe>());
        let used: Vec<_> = (0..10_000).map(|n| Common::new(Probe(n))).collect();
        assert_eq!(kept::<Probe>(), used.len(), "what is used stays");
        drop(used);
        assert_eq!(kept::<Probe>(), 0);
        let room: usize = table.parts.iter().map(|p| p.lock().unwrap().values.capacity()).sum();
        assert!(room <= PARTS * FEW * 2, "the table keeps room for {room} values of which there are none");
    }

    #[test]
    fn threads_share_and_leave_nothing() {
        probe!(Probe);
        std::thread::scope(|scope| {
            for seed in 0..4_usize {
                scope.spawn(move || {
                    let mut held: Vec<Option<Common<Probe>>> = vec![None; 16];
                    for n in 0..20_000_usize {
                        let value = u32::try_from(n * (seed + 1) % 7).unwrap();
                        let new = Common::new(Probe(value));
                        assert_eq!(new.0.0, value);
                        held[n % 16] = (n % 3 > 0).then_some(new);
                    }
                    for a in held.iter().flatten() {
                        assert!(
                            held.iter().flatten().filter(|b| *b == a).all(|b| Arc::ptr_eq(&a.0, &b.0)),
                            "equal values are one"
                        );
                    }
                });
            }
        });
        assert!(kept::<Probe>() <= 7);
    }

    #[test]
    fn texts_read_and_write_like_plain_ones() {
        let (a, b): (Text, Text) = ("Tasks are running".into(), String::from("Tasks are running").into());
        assert!(a == b && a == "Tasks are running" && a.as_str().as_ptr() == b.as_str().as_ptr());
        assert_eq!(
            (a.to_string(), format!("{a:?}")),
            ("Tasks are running".to_owned(), "\"Tasks are running\"".to_owned())
        );
        assert_eq!(serde_json::to_string(&a).unwrap(), "\"Tasks are running\"");
        assert_eq!(serde_json::from_str::<Text>("\"Tasks are running\"").unwrap(), a);
        assert_eq!([Text::from(""), String::new().into()], [Text::default(), Text::default()]);
        assert_eq!(serde_json::to_string(&Text::default()).unwrap(), "\"\"");
        assert_eq!((size_of::<Text>(), size_of::<Option<Text>>()), (8, 16));
    }
}
