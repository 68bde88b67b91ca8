//! A list that copies of its owner share until one of them is edited.
//!
//! A job's record is written anew when its status changes, while its allocations keep the record that they were placed
//! with. The groups are most of a job and the same in both.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::map::exact;

/// A list with cheap clones; see the module. Writing to a list that others share copies it first. Serde form: the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedList<T>(Arc<Vec<T>>);

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Deref for SharedList<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Clone> DerefMut for SharedList<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<Vec<T>> for SharedList<T> {
    fn from(list: Vec<T>) -> Self {
        Self(Arc::new(list))
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<'a, T> IntoIterator for &'a SharedList<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: Clone> IntoIterator for &'a mut SharedList<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: Serialize> Serialize for SharedList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for SharedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        exact(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::SharedList;

    #[test]
    fn an_edit_shows_in_one_copy_alone() {
        let first: SharedList<u8> = [1, 2].into_iter().collect();
        let mut second = first.clone();
        assert!(std::ptr::eq(&*first, &*second), "one piece of memory");
        second.push(3);
        for n in &mut second {
            *n += 1;
        }
        assert_eq!((first.as_slice(), second.as_slice()), (&[1, 2][..], &[2, 3, 4][..]));
        assert_eq!(serde_json::to_string(&second).unwrap(), "[2,3,4]");
        assert_eq!(serde_json::from_str::<SharedList<u8>>("[2,3,4]").unwrap(), second);
    }
}
