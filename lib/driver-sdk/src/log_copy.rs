//! A node's copy of one log of a remote task: rotated files that any writer continues exactly where they ended.
//!
//! Beside the files lies `.<name>.origin`. It holds the instance of the newest file, and the position in the instance's
//! log at which that file begins. It is replaced before a file is, so the next position always follows from it and the
//! newest file's length.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// An open copy. All calls may block on the disk.
#[derive(Debug)]
pub(crate) struct LogCopy {
    place: Place,
    key: String,
    origin: Origin,
    file: File,
    len: u64,
}

/// Names of the files, and when to rotate.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    /// Base name, such as `web.stdout`.
    pub(crate) name: String,
    pub(crate) max_files: u32,
    pub(crate) max_file_bytes: u64,
}

/// The origin of the newest file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    number: u64,
    /// Position of the file's first byte; negative when it begins with an earlier instance's output.
    begins: i64,
}

fn signed(n: u64) -> io::Result<i64> {
    i64::try_from(n).map_err(|_| io::Error::other(format!("position {n} of a log is out of range")))
}

impl Place {
    fn file(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{}.{number}", self.name))
    }
    fn origin(&self) -> PathBuf {
        self.dir.join(format!(".{}.origin", self.name))
    }

    fn read_origin(&self, key: &str) -> io::Result<Option<Origin>> {
        let text = match fs::read_to_string(self.origin()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut fields = text.split_whitespace();
        let parsed = (|| Some((fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)))();
        Ok(parsed.filter(|(of, ..)| *of == key).map(|(_, number, begins)| Origin { number, begins }))
    }

    fn newest(&self) -> io::Result<Option<u64>> {
        let numbers = fs::read_dir(&self.dir)?.flatten().filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix(&self.name)?.strip_prefix('.')?.parse::<u64>().ok()
        });
        Ok(numbers.max())
    }

    fn open(self, key: &str, origin: Origin) -> io::Result<LogCopy> {
        let file = OpenOptions::new().create(true).append(true).open(self.file(origin.number))?;
        let len = file.metadata()?.len();
        Ok(LogCopy { place: self, key: key.to_owned(), origin, file, len })
    }

    /// Continues the copy of this instance's log, if one was begun here.
    pub(crate) fn resume(self, key: &str) -> io::Result<Option<LogCopy>> {
        let origin = self.read_origin(key)?;
        origin.map(|origin| self.open(key, origin)).transpose()
    }

    /// Begins to copy an instance's log at a position, after the output of earlier instances.
    pub(crate) fn begin(self, key: &str, position: u64) -> io::Result<LogCopy> {
        let number = self.newest()?.unwrap_or(0);
        let held = fs::metadata(self.file(number)).map_or(0, |m| m.len());
        let origin = Origin { number, begins: signed(position)? - signed(held)? };
        write_origin(&self, key, origin)?;
        self.open(key, origin)
    }
}

/// Writes the origin atomically.
fn write_origin(place: &Place, key: &str, origin: Origin) -> io::Result<()> {
    let (path, fresh) = (place.origin(), place.dir.join(format!(".{}.origin.new", place.name)));
    fs::write(&fresh, format!("{key} {} {}\n", origin.number, origin.begins))?;
    fs::rename(fresh, path)
}

impl LogCopy {
    /// Next position in the instance's log.
    pub(crate) fn position(&self) -> u64 {
        u64::try_from(self.origin.begins.saturating_add_unsigned(self.len)).unwrap_or(0)
    }

    /// Appends bytes that begin at `position`. Skips those that it has already; a gap means that the provider had lost
    /// that part.
    pub(crate) fn append(&mut self, position: u64, data: &[u8]) -> io::Result<()> {
        let held = usize::try_from(self.position().saturating_sub(position)).unwrap_or(usize::MAX);
        let mut data = data.get(held..).unwrap_or_default();
        if data.is_empty() {
            return Ok(());
        }
        if position > self.position() {
            self.next_file(position)?;
        }
        while !data.is_empty() {
            let room = usize::try_from(self.place.max_file_bytes.saturating_sub(self.len)).unwrap_or(usize::MAX);
            if room == 0 {
                self.next_file(self.position())?;
                continue;
            }
            let now = match data.get(..room) {
                None => data,
                // Cut at a line end, if there is one.
                Some(part) => part.iter().rposition(|b| *b == b'\n').map_or(part, |end| &part[..=end]),
            };
            // Counts written bytes only, even if the disk takes a part.
            let taken = self.file.write(now)?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.len += taken as u64;
            data = &data[taken..];
            if taken == now.len() && !data.is_empty() {
                self.next_file(self.position())?;
            }
        }
        Ok(())
    }

    fn next_file(&mut self, begins: u64) -> io::Result<()> {
        let origin = Origin { number: self.origin.number + 1, begins: signed(begins)? };
        write_origin(&self.place, &self.key, origin)?;
        let place = self.place.clone();
        if let Some(old) = origin.number.checked_sub(u64::from(self.place.max_files.max(1))) {
            remove(&place.file(old))?;
        }
        *self = place.open(&self.key.clone(), origin)?;
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(dir: &Path, max_files: u32, max_file_bytes: u64) -> Place {
        Place { dir: dir.to_owned(), name: "t.stdout".into(), max_files, max_file_bytes }
    }

    fn text(place: &Place) -> String {
        (0..100).filter_map(|n| fs::read_to_string(place.file(n)).ok()).collect()
    }

    #[test]
    fn goes_on_where_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let here = place(dir.path(), 10, 1 << 20);
        assert!(here.clone().resume("a").unwrap().is_none());
        let mut copy = here.clone().begin("a", 0).unwrap();
        copy.append(0, b"one\n").unwrap();
        drop(copy);
        let mut copy = here.clone().resume("a").unwrap().unwrap();
        assert_eq!(copy.position(), 4);
        // Sent again from the beginning: only the rest is new.
        copy.append(0, b"one\ntwo\n").unwrap();
        assert_eq!((text(&here).as_str(), copy.position()), ("one\ntwo\n", 8));
        // Another instance of the task: its log begins at 0 again and continues in the same file.
        assert!(here.clone().resume("b").unwrap().is_none());
        let mut copy = here.clone().begin("b", 0).unwrap();
        copy.append(0, b"three\n").unwrap();
        assert_eq!((text(&here).as_str(), copy.position()), ("one\ntwo\nthree\n", 6));
        assert_eq!(here.resume("b").unwrap().unwrap().position(), 6);
    }

    #[test]
    fn a_hand_over_begins_where_the_log_is() {
        let dir = tempfile::tempdir().unwrap();
        let here = place(dir.path(), 10, 1 << 20);
        let mut copy = here.clone().begin("a", 1000).unwrap();
        copy.append(1000, b"now\n").unwrap();
        assert_eq!((text(&here).as_str(), copy.position()), ("now\n", 1004));
        // The provider has dropped a part.
        copy.append(2000, b"later\n").unwrap();
        assert_eq!((text(&here).as_str(), here.resume("a").unwrap().unwrap().position()), ("now\nlater\n", 2006));
    }

    #[test]
    fn old_files_leave_and_lines_stay_whole() {
        let dir = tempfile::tempdir().unwrap();
        let here = place(dir.path(), 2, 10);
        let mut copy = here.clone().begin("a", 0).unwrap();
        copy.append(0, b"1234567\nabc\nABCDEFG\nx\n").unwrap();
        assert_eq!(here.newest().unwrap(), Some(2));
        assert_eq!(text(&here), "abc\nABCDEFG\nx\n".split_inclusive('\n').collect::<String>());
        assert_eq!(here.resume("a").unwrap().unwrap().position(), 22);
    }

    #[test]
    fn an_interrupted_change_of_files_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let here = place(dir.path(), 10, 1 << 20);
        let mut copy = here.clone().begin("a", 0).unwrap();
        copy.append(0, b"one\n").unwrap();
        // Killed between the two steps: the origin names a file that does not exist yet.
        write_origin(&here, "a", Origin { number: 1, begins: 4 }).unwrap();
        let mut copy = here.clone().resume("a").unwrap().unwrap();
        assert_eq!(copy.position(), 4);
        copy.append(4, b"two\n").unwrap();
        assert_eq!(text(&here), "one\ntwo\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_chunks_and_any_restarts_give_the_same_text(lens in prop::collection::vec((0_usize..30, any::<bool>()),
            1..12), max in 3_u64..20) {
            let dir = tempfile::tempdir().unwrap();
            let here = place(dir.path(), 1000, max);
            let whole: Vec<u8> = (0..600_u32).map(|n| if n % 7 == 0 { b'\n' } else { b'a' + (n % 26) as u8 }).collect();
            let mut copy = here.clone().begin("k", 0).unwrap();
            let mut end = 0_usize;
            for (len, restart) in lens {
                let begin = end.saturating_sub(3);
                end = (end + len).min(whole.len());
                copy.append(begin as u64, &whole[begin..end]).unwrap();
                if restart {
                    copy = here.clone().resume("k").unwrap().unwrap();
                }
                prop_assert_eq!(copy.position(), end as u64);
            }
            let written: Vec<u8> =
                (0..=here.newest().unwrap().unwrap()).flat_map(|n| fs::read(here.file(n)).unwrap()).collect();
            prop_assert_eq!(&written[..], &whole[..end]);
        }
    }
}
