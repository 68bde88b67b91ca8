//! What a render has to work with: its data, its bounds and what it has used of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use regex::Regex;

use crate::{
    settings::Settings,
    source::{Lookup, Source},
    value::Scratch,
};

/// Steps that the compilation of a regular expression counts as.
const REGEX_STEPS: usize = 20_000;
/// Bytes that one step stands for, where a function works on text.
const BYTES_PER_STEP: usize = 64;

/// The means of one render.
pub(crate) struct Means<'a> {
    pub(crate) source: &'a mut dyn Source,
    pub(crate) settings: &'a Settings,
    steps: usize,
    allocated: usize,
    missing: BTreeSet<String>,
    pub(crate) scratch: Scratch,
    regexes: BTreeMap<String, Rc<Regex>>,
}

impl<'a> Means<'a> {
    pub(crate) fn new(source: &'a mut dyn Source, settings: &'a Settings) -> Self {
        Self {
            source,
            settings,
            steps: settings.limits.steps,
            allocated: settings.limits.allocated,
            missing: BTreeSet::new(),
            scratch: Scratch::default(),
            regexes: BTreeMap::new(),
        }
    }

    /// What the render waits for.
    pub(crate) fn finish(self) -> BTreeSet<String> {
        // It may hold itself.
        self.scratch.0.borrow_mut().clear();
        self.missing
    }

    /// Counts steps.
    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), String> {
        self.steps =
            self.steps.checked_sub(steps).ok_or("the template takes too many steps; does it loop without an end?")?;
        Ok(())
    }

    /// Counts bytes that are about to be made.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.allocated.checked_sub(bytes);
        self.allocated = left.ok_or_else(|| {
            format!("the template makes more than {} MiB of data", self.settings.limits.allocated >> 20)
        })?;
        self.spend(bytes / BYTES_PER_STEP)
    }

    /// Bytes that may still be made.
    pub(crate) fn room(&self) -> usize {
        self.allocated
    }

    /// What a source knows; None while it is missing.
    pub(crate) fn known<T>(&mut self, lookup: Lookup<T>, what: impl FnOnce() -> String) -> Result<Option<T>, String> {
        match lookup {
            Lookup::Known(value) => Ok(Some(value)),
            Lookup::Missing => {
                self.missing.insert(what());
                Ok(None)
            }
            Lookup::Refused(why) => Err(why),
        }
    }

    pub(crate) fn regex(&mut self, pattern: &str) -> Result<Rc<Regex>, String> {
        if let Some(known) = self.regexes.get(pattern) {
            return Ok(known.clone());
        }
        self.spend(REGEX_STEPS + pattern.len())?;
        let regex = regex::RegexBuilder::new(pattern).size_limit(1 << 19).dfa_size_limit(1 << 20).build();
        let regex = Rc::new(regex.map_err(|e| format!("the regular expression {pattern:?} cannot be used: {e}"))?);
        self.regexes.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    }
}
