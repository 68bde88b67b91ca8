//! A value that its readers share until it changes.
//!
//! An allocation is compared with its last record, shown to readers, and handed to effects. A node has thousands that
//! hardly ever change: each exists once in memory.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A shared value; a write copies it while others hold it.
#[derive(Debug, Default)]
pub struct Kept<T>(Arc<T>);

impl<T> Kept<T> {
    /// A shared copy of the present value.
    pub fn share(&self) -> Arc<T> {
        self.0.clone()
    }

    /// Whether both are the same allocation in memory, unwritten since.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> From<T> for Kept<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> From<Arc<T>> for Kept<T> {
    fn from(value: Arc<T>) -> Self {
        Self(value)
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: PartialEq> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || *self.0 == *other.0
    }
}

impl<T: Serialize> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Kept<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        T::deserialize(d).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_value_until_it_is_written_to() {
        let mut kept = Kept::from(vec![1]);
        let (saved, shown) = (kept.clone(), kept.share());
        assert!(kept.is(&saved) && Arc::ptr_eq(&shown, &kept.share()));
        kept.push(2);
        assert_eq!((&*kept, &*saved, &*shown), (&vec![1, 2], &vec![1], &vec![1]));
        assert!(kept != saved && !kept.is(&saved));
    }
}
